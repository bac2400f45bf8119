/* AMX's instructions on a CPU without AMX: each of them ends in SIGILL, whose handler computes it as
 * "Intel 64 and IA-32 Architectures Software Developer's Manual", volume 2, defines it, and goes on behind it.
 * Tiles belong to a thread. What the manual answers with #UD or #GP ends the process, as it would on AMX. */
#define _GNU_SOURCE /* REG_RIP and its like */
#include <immintrin.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <ucontext.h>

typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[8], reserved_too[8];
    uint8_t rows[16];
} Shape;

static _Thread_local Shape shape;
static _Thread_local union { uint8_t bytes[64]; uint32_t words[16]; float floats[16]; } tiles[8][16];
static long computed;

static const int GENERAL[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                                REG_R8, REG_R9, REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};

long traps_computed(void) { return __atomic_load_n(&computed, __ATOMIC_RELAXED); }

static float half(uint32_t word, int which) {
    union { uint32_t bits; float value; } half = {which ? word & 0xFFFF0000u : word << 16};
    return half.value;
}

static int load_shape(const void *memory) {
    Shape new;
    memcpy(&new, memory, sizeof new);
    static const uint8_t zeros[16];
    int is_valid = new.palette <= 1 && !memcmp(new.reserved, zeros, 14) && !memcmp(new.reserved_too, zeros, 16)
                   && !memcmp(new.rows + 8, zeros, 8);
    for (int n = 0; n < 8; n++)
        is_valid &= new.rows[n] <= 16 && new.row_bytes[n] <= 64 && !new.rows[n] == !new.row_bytes[n];
    if (!is_valid) return 0;
    memset(tiles, 0, sizeof tiles);
    shape = new;
    if (!new.palette) memset(&shape, 0, sizeof shape);
    return 1;
}

static int move(int tile, uint8_t *memory, int64_t stride, int is_load) {
    if (!shape.rows[tile]) return 0;
    if (is_load) memset(tiles[tile], 0, sizeof tiles[tile]);
    for (int row = 0; row < shape.rows[tile]; row++) {
        uint8_t *outside = memory + row * stride, *inside = tiles[tile][row].bytes;
        memcpy(is_load ? inside : outside, is_load ? outside : inside, shape.row_bytes[tile]);
    }
    return 1;
}

static void multiply_bfloat16(int sums, int left, int right, int rows, int depth, int columns) {
    for (int m = 0; m < rows; m++)
        for (int n = 0; n < columns; n++) {
            float total[2] = {0, 0};
            for (int k = 0; k < depth; k++)
                for (int which = 0; which < 2; which++)
                    total[which] = __builtin_fmaf(half(tiles[left][m].words[k], which),
                                                  half(tiles[right][k].words[n], which), total[which]);
            tiles[sums][m].floats[n] += total[0] + total[1];
        }
}

static void multiply_bytes(int sums, int left, int right, int rows, int depth, int columns) {
    for (int m = 0; m < rows; m++)
        for (int n = 0; n < columns; n++)
            for (int i = 0; i < 4 * depth; i++) {
                int factor = (int8_t)tiles[right][i / 4].bytes[4 * n + i % 4];
                tiles[sums][m].words[n] += (uint32_t)(tiles[left][m].bytes[i] * factor);
            }
}

static int multiply(int opcode, int prefix, int sums, int left, int right) {
    int rows = shape.rows[sums], depth = shape.rows[right], columns = shape.row_bytes[sums] / 4;
    int differ = sums != left && left != right && sums != right;
    int fit = shape.rows[left] == rows && shape.row_bytes[left] == 4 * depth && shape.row_bytes[right] == 4 * columns;
    if (!(rows && depth && differ && fit) || shape.row_bytes[sums] % 4) return 0;
    uint32_t control = _mm_getcsr();
    if (opcode == 0x5C && prefix == 2) {
        _mm_setcsr(0x9FC0); /* to the nearest, denormals are zeros before and after, nothing is reported */
        multiply_bfloat16(sums, left, right, rows, depth, columns);
    } else if (opcode == 0x5E && prefix == 1) {
        multiply_bytes(sums, left, right, rows, depth, columns);
    } else {
        return 0;
    }
    _mm_setcsr(control);
    return 1;
}

/* Computes the instruction at `code`; its length, or 0 if it is another one or not allowed. */
static int compute(const uint8_t *code, greg_t *registers) {
    if (code[0] != 0xC4 || (code[1] & 0x1F) != 2 || code[2] & 0x84) return 0; /* three bytes of VEX, 0F38, W0, 128 */
    int prefix = code[2] & 3, other = ~code[2] >> 3 & 15, opcode = code[3], modrm = code[4];
    int mode = modrm >> 6, reg = modrm >> 3 & 7, rm = modrm & 7, length = 5;
    if (mode == 3) {
        if (opcode == 0x49 && prefix == 0 && modrm == 0xC0) /* tilerelease */
            return load_shape(&(Shape){0}) ? length : 0;
        if (opcode == 0x49 && prefix == 3 && rm == 0) { /* tilezero */
            memset(tiles[reg], 0, sizeof tiles[reg]);
            return shape.rows[reg] ? length : 0;
        }
        return other < 8 && multiply(opcode, prefix, reg, rm, other) ? length : 0;
    }
    int64_t base = 0, index = 0;
    int base_number = rm, has_index = rm == 4;
    if (has_index) {
        int sib = code[length++], number = (sib >> 3 & 7) | (code[1] & 0x40 ? 0 : 8);
        base_number = sib & 7;
        index = number == 4 ? 0 : registers[GENERAL[number]] << (sib >> 6);
    }
    if (mode == 0 && base_number == 5) {
        int32_t far;
        memcpy(&far, code + length, 4), length += 4;
        base = far + (has_index ? 0 : registers[REG_RIP] + length);
    } else {
        base = registers[GENERAL[base_number | (code[1] & 0x20 ? 0 : 8)]];
        int32_t far = 0;
        if (mode == 1) far = (int8_t)code[length], length += 1;
        if (mode == 2) memcpy(&far, code + length, 4), length += 4;
        base += far;
    }
    if (opcode == 0x49 && prefix == 0 && reg == 0) return load_shape((void *)(base + index)) ? length : 0;
    if (opcode != 0x4B || !has_index || prefix == 0) return 0;
    return move(reg, (uint8_t *)base, index, prefix != 2) ? length : 0; /* 1 and 3 load, 2 stores */
}

static void on_illegal(int number, siginfo_t *info, void *context) {
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    int length = compute((const uint8_t *)registers[REG_RIP], registers);
    if (!length) signal(SIGILL, SIG_DFL); /* the instruction runs again, and ends the process */
    registers[REG_RIP] += length;
    __atomic_add_fetch(&computed, 1, __ATOMIC_RELAXED);
}

static sigjmp_buf before;
static void on_missing(int number) { siglongjmp(before, 1); }

/* Takes SIGILL; 0 if the CPU lacks what the code for AMX needs beside the tiles (CPUID may hide it). */
int traps_install(void) {
    signal(SIGILL, on_missing);
    int missing = sigsetjmp(before, 1);
    if (!missing) __asm__ volatile(".byte 0x62, 0xf2, 0x7e, 0x48, 0x52, 0xc0" ::: "xmm0"); /* vdpbf16ps of zmm0 */
    struct sigaction action = {.sa_sigaction = on_illegal, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigaction(SIGILL, &action, NULL);
    return !missing;
}
