"""What this machine is."""

import platform
from pathlib import Path


def cpu_model() -> str:
    """The name of the CPU, and its architecture."""
    return f"{cpu_info('model name') or platform.processor() or 'unknown'} ({platform.machine()})"


def cpu_info(key: str) -> str:
    """What Linux says of the first CPU under a name; "" where it does not."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), "")
