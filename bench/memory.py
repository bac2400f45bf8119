"""How much memory a process has resident, as Linux tells it.

It imports nothing of bertcore: it is asked before bertcore is imported, whose memory is measured.
"""

from pathlib import Path


def resident(key: str = "VmRSS", process: int | str = "self") -> float:
    """MB of a process: now ("VmRSS") or at most since its start ("VmHWM").

    Raises OSError where there is no /proc, or no such process.
    """
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{process}/status").read_text().splitlines())
    return int(lines[key].split()[0]) * 1024 / 1e6
