"""The clocks of the machine."""

import time


class SystemClock:
    mono_ns = staticmethod(time.monotonic_ns)

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def mono_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000
