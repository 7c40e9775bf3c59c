"""Write many megabytes: in lines, or in one line that draws over itself.

flood.py 200 lines | bar
"""

import os
import sys

megabytes, kind = sys.argv[1:]
piece = (b"x" * 63 + (b"\n" if kind == "lines" else b"\r")) * (1 << 14)
for _ in range(int(megabytes)):
    os.write(1, piece)
os.write(1, b"\nthe end\n")
sys.exit(3)
