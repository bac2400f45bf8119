"""The memory of this process, by the system's account."""

from pathlib import Path

STATUS = Path("/proc/self/status")


def check_resident_is_told() -> None:
    """OSError where the system does not tell the memory of a process (Linux does)."""
    if not STATUS.exists():
        raise OSError(f"the memory of a process is read from {STATUS}, which is not here")


def resident_megabytes(key: str = "VmRSS") -> float:
    """Megabytes (10^6 bytes) of this process, by their name in Linux's table: VmRSS now, VmHWM at most."""
    lines = dict(line.split(":", 1) for line in STATUS.read_text().splitlines())
    return int(lines[key].split()[0]) * 1024 / 1e6
