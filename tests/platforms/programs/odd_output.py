"""Write what logs may hold: other scripts, half characters, colours, progress bars, endless lines, no newline."""

import os

os.write(1, "größer als 漢字 ✓ :fire: [bold]not markup[/]\n".encode())
os.write(1, b"not \xff\xfe text\n")
os.write(1, b"\x1b[31mred\x1b[0m \x1b]0;a title\x07plain \x1bc\x07\n")
os.write(1, b"10%\r20%\r100% done\r\n")
os.write(1, b"long " + b"y" * 300_000 + b" tail\n")
os.write(1, "ü".encode() * 100_000 + b"\n")
os.write(1, b"no newline")
