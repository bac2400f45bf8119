// A stand-in for cuBLASLt over host memory: the functions that bertcore.kernels._cuda.cublaslt calls, for column-major
// matrices, with float32 sums. It refuses what the documentation does not allow, and says why in
// cublasLtGetStatusString. A sum is cut in pieces by the number of columns, as the library may do: its bits depend on it.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

namespace {

thread_local char reason[256] = "success";
unsigned long long products;  // how many were computed
void *last_stream;            // of the latest

template <class... Args> int refuse(int status, const char *format, Args... args) {
  std::snprintf(reason, sizeof(reason), format, args...);
  return status;
}

enum Status { SUCCESS = 0, INVALID_VALUE = 7, NOT_SUPPORTED = 15 };
enum Type { FLOAT = 0, HALF = 2, BFLOAT16 = 14 };
enum Epilogue { DEFAULT = 1, BIAS = 4, GELU = 32, GELU_BIAS = 36 };
constexpr int COMPUTE_32F = 68;

size_t size_of(int type) { return type == FLOAT ? 4 : 2; }
bool is_known(int type) { return type == FLOAT || type == HALF || type == BFLOAT16; }

float read(const void *array, size_t index, int type) {
  if (type == FLOAT) return static_cast<const float *>(array)[index];
  if (type == HALF) return static_cast<const _Float16 *>(array)[index];
  const uint32_t bits = uint32_t(static_cast<const uint16_t *>(array)[index]) << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

void write(void *array, size_t index, int type, float value) {
  if (type == FLOAT) {
    static_cast<float *>(array)[index] = value;
  } else if (type == HALF) {
    static_cast<_Float16 *>(array)[index] = static_cast<_Float16>(value);
  } else {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    bits = std::isnan(value) ? 0x7fc00000u : bits + 0x7fff + (bits >> 16 & 1);  // to nearest even
    static_cast<uint16_t *>(array)[index] = uint16_t(bits >> 16);
  }
}

struct Layout {
  int type;
  uint64_t rows, columns;
  int64_t leading, batch_stride = 0;
  int32_t batch = 1;
};

struct Operation {
  int32_t transpose_a = 0, transpose_b = 0;
  uint32_t epilogue = DEFAULT;
  const void *bias = nullptr;
};

struct Preference {
  uint64_t workspace = 0;
  uint32_t reductions = 7, alignments[4] = {256, 256, 256, 256};  // of A, B, C, D
};

struct Algorithm {  // what its 64 bytes hold: the product that it was chosen for
  uint32_t rows, columns, depth, batch, epilogue, alignments[4], bias_alignment, workspace;
};
static_assert(sizeof(Algorithm) <= 64, "cublasLtMatmulAlgo_t has 64 bytes");

struct Choice {  // cublasLtMatmulHeuristicResult_t
  uint64_t algorithm[8];
  size_t workspace;
  int status;
  float waves;
  int reserved[4];
};

uint32_t alignment_of(const void *address) {
  const uintptr_t bits = reinterpret_cast<uintptr_t>(address);
  const uintptr_t lowest = bits & -bits;
  return lowest == 0 || lowest > 256 ? 256 : uint32_t(lowest);
}

template <class T> int set(T &field, const void *value, size_t bytes) {
  if (bytes != sizeof(T)) return refuse(INVALID_VALUE, "an attribute of %zu bytes is given %zu", sizeof(T), bytes);
  std::memcpy(&field, value, bytes);
  return SUCCESS;
}

// The sizes of the product: SUCCESS if the matrices fit each other.
int sizes(const Operation &operation, const Layout &a, const Layout &b, const Layout &c, const Layout &d,
          Algorithm &product) {
  const uint64_t rows = operation.transpose_a ? a.columns : a.rows, depth = operation.transpose_a ? a.rows : a.columns;
  const uint64_t columns = operation.transpose_b ? b.rows : b.columns;
  const uint64_t depth_of_b = operation.transpose_b ? b.columns : b.rows;
  if (depth != depth_of_b) return refuse(INVALID_VALUE, "sums of %zu and of %zu", size_t(depth), size_t(depth_of_b));
  for (const Layout *it : {&c, &d})
    if (it->rows != rows || it->columns != columns) return refuse(INVALID_VALUE, "C or D is not as large as A B");
  for (const Layout *it : {&a, &b, &c})
    if (it->batch != d.batch) return refuse(INVALID_VALUE, "batches of %d and of %d", it->batch, d.batch);
  if (a.type != b.type || c.type != d.type || (d.type != a.type && d.type != FLOAT))
    return refuse(NOT_SUPPORTED, "types %d, %d, %d, %d", a.type, b.type, c.type, d.type);
  product = {uint32_t(rows), uint32_t(columns), uint32_t(depth), uint32_t(d.batch), operation.epilogue};
  return SUCCESS;
}

// rows x depth, row by row, of A or of the transpose of B
std::vector<float> unpacked(const void *array, const Layout &layout, bool depth_first, size_t rows, size_t depth) {
  std::vector<float> values(rows * depth);
  for (size_t row = 0; row < rows; ++row)
    for (size_t k = 0; k < depth; ++k)
      values[row * depth + k] = read(array, depth_first ? k + row * layout.leading : row + k * layout.leading, layout.type);
  return values;
}

float gelu(float x) { return 0.5f * x * (1 + std::tanh(0.7978845608f * (x + 0.044715f * x * x * x))); }

const void *at(const void *array, const Layout &layout, int64_t i) {
  return static_cast<const char *>(array) + i * layout.batch_stride * int64_t(size_of(layout.type));
}

void multiply(const Operation &operation, const Algorithm &product, float alpha, const void *a, const Layout &a_layout,
              const void *b, const Layout &b_layout, float beta, const void *c, const Layout &c_layout, void *d,
              const Layout &d_layout) {
  const size_t rows = product.rows, columns = product.columns, depth = product.depth;
  const std::vector<float> left = unpacked(a, a_layout, operation.transpose_a, rows, depth);
  const std::vector<float> right = unpacked(b, b_layout, !operation.transpose_b, columns, depth);
  const size_t piece = depth / (1 + columns % 3) + 1;
  for (size_t column = 0; column < columns; ++column)
    for (size_t row = 0; row < rows; ++row) {
      float sum = 0;
      for (size_t first = 0; first < depth; first += piece) {
        float part = 0;
        for (size_t k = first; k < depth && k < first + piece; ++k)
          part += left[row * depth + k] * right[column * depth + k];
        sum += part;
      }
      sum *= alpha;
      if (beta != 0) sum += beta * read(c, row + column * c_layout.leading, c_layout.type);
      if (operation.epilogue & BIAS) sum += read(operation.bias, row, d_layout.type);
      if (operation.epilogue & GELU) sum = gelu(sum);
      write(d, row + column * d_layout.leading, d_layout.type, sum);
    }
}

}  // namespace

extern "C" {

const char *cublasLtGetStatusString(int) { return reason; }

unsigned long long standin_products() { return products; }
void *standin_last_stream() { return last_stream; }

int cublasLtCreate(void **handle) {
  *handle = new int;
  return SUCCESS;
}

int cublasLtMatmulDescCreate(Operation **made, int compute, int scale) {
  if (compute != COMPUTE_32F || scale != FLOAT) return refuse(INVALID_VALUE, "compute type %d, scale %d", compute, scale);
  *made = new Operation;
  return SUCCESS;
}

int cublasLtMatrixLayoutCreate(Layout **made, int type, uint64_t rows, uint64_t columns, int64_t leading) {
  if (!is_known(type)) return refuse(INVALID_VALUE, "type %d", type);
  if (!rows || !columns || leading < int64_t(rows))
    return refuse(INVALID_VALUE, "%zu rows, %zu columns, leading dimension %zd", rows, columns, ssize_t(leading));
  *made = new Layout{type, rows, columns, leading};
  return SUCCESS;
}

int cublasLtMatmulPreferenceCreate(Preference **made) {
  *made = new Preference;
  return SUCCESS;
}

int cublasLtMatmulDescDestroy(Operation *it) { return delete it, SUCCESS; }
int cublasLtMatrixLayoutDestroy(Layout *it) { return delete it, SUCCESS; }
int cublasLtMatmulPreferenceDestroy(Preference *it) { return delete it, SUCCESS; }

int cublasLtMatmulDescSetAttribute(Operation *operation, int attribute, const void *value, size_t bytes) {
  switch (attribute) {
    case 3: return set(operation->transpose_a, value, bytes);
    case 4: return set(operation->transpose_b, value, bytes);
    case 7: return set(operation->epilogue, value, bytes);
    case 8: return set(operation->bias, value, bytes);
  }
  return refuse(INVALID_VALUE, "attribute %d of an operation", attribute);
}

int cublasLtMatrixLayoutSetAttribute(Layout *layout, int attribute, const void *value, size_t bytes) {
  if (attribute == 5) return set(layout->batch, value, bytes);
  if (attribute == 6) return set(layout->batch_stride, value, bytes);
  return refuse(INVALID_VALUE, "attribute %d of a layout", attribute);
}

int cublasLtMatmulPreferenceSetAttribute(Preference *preference, int attribute, const void *value, size_t bytes) {
  if (attribute == 1) return set(preference->workspace, value, bytes);
  if (attribute == 3) return set(preference->reductions, value, bytes);
  if (attribute >= 5 && attribute <= 8) return set(preference->alignments[attribute - 5], value, bytes);
  return refuse(INVALID_VALUE, "attribute %d of a preference", attribute);
}

int cublasLtMatmulAlgoGetHeuristic(void *handle, Operation *operation, Layout *a, Layout *b, Layout *c, Layout *d,
                                   Preference *preference, int wanted, Choice *choices, int *count) {
  Algorithm product;
  *count = 0;
  if (!handle || wanted < 1) return refuse(INVALID_VALUE, "no handle, or %d algorithms", wanted);
  if (const int status = sizes(*operation, *a, *b, *c, *d, product)) return status;
  for (const uint32_t known : {DEFAULT, BIAS, GELU, GELU_BIAS})
    if (operation->epilogue == known) *count = 1;
  if (*count == 0) return refuse(NOT_SUPPORTED, "epilogue %u", operation->epilogue);
  if (preference->reductions & ~2u) return refuse(NOT_SUPPORTED, "partial sums would be rounded to the output's type");
  std::memcpy(product.alignments, preference->alignments, sizeof(product.alignments));
  for (const uint32_t alignment : product.alignments)
    if (alignment == 0 || alignment & (alignment - 1)) return refuse(INVALID_VALUE, "alignment %u", alignment);
  const bool has_bias = operation->epilogue & BIAS;
  if (has_bias && !operation->bias) return refuse(INVALID_VALUE, "the epilogue adds a bias, but there is none");
  product.bias_alignment = has_bias ? alignment_of(operation->bias) : 1;
  product.workspace = product.depth >= 32 && preference->workspace >= 1024 ? 1024 : 0;
  choices[0] = {};
  std::memcpy(choices[0].algorithm, &product, sizeof(product));
  choices[0].workspace = product.workspace;
  return SUCCESS;
}

int cublasLtMatmul(void *handle, Operation *operation, const float *alpha, const void *a, Layout *a_layout,
                   const void *b, Layout *b_layout, const float *beta, const void *c, Layout *c_layout, void *d,
                   Layout *d_layout, const Algorithm *algorithm, void *workspace, size_t workspace_bytes, void *stream) {
  Algorithm product;
  if (!handle) return refuse(INVALID_VALUE, "no handle");
  if (const int status = sizes(*operation, *a_layout, *b_layout, *c_layout, *d_layout, product)) return status;
  if (std::memcmp(&product, algorithm, 5 * sizeof(uint32_t)))
    return refuse(INVALID_VALUE, "the algorithm was chosen for another product");
  const void *addresses[4] = {a, b, c, d};
  for (int i = 0; i < 4; ++i)
    if (alignment_of(addresses[i]) < algorithm->alignments[i])
      return refuse(INVALID_VALUE, "matrix %c is not on a boundary of %u bytes", "ABCD"[i], algorithm->alignments[i]);
  const bool has_bias = operation->epilogue & BIAS;
  if (has_bias && alignment_of(operation->bias) < algorithm->bias_alignment)
    return refuse(INVALID_VALUE, "the bias is not on a boundary of %u bytes", algorithm->bias_alignment);
  if (workspace_bytes < algorithm->workspace || (algorithm->workspace && !workspace))
    return refuse(INVALID_VALUE, "a workspace of %zu bytes, expected %u", workspace_bytes, algorithm->workspace);
  if (algorithm->workspace) std::memset(workspace, 0xff, algorithm->workspace);
  products += 1, last_stream = stream;

  for (int64_t i = 0; i < product.batch; ++i)
    multiply(*operation, product, *alpha, at(a, *a_layout, i), *a_layout, at(b, *b_layout, i), *b_layout, *beta,
             at(c, *c_layout, i), *c_layout, const_cast<void *>(at(d, *d_layout, i)), *d_layout);
  return SUCCESS;
}

}
