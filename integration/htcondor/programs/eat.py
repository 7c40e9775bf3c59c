"""Use up all memory."""

import time

eaten = []
while True:
    eaten.append(bytearray(20_000_000))
    time.sleep(0.02)
