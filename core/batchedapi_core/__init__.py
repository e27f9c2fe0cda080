"""What is decided: pure functions of frozen values. No I/O, no clock, no asyncio, no logging."""
