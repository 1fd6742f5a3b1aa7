# Python's standard library, compiled and concatenated.
import glob, importlib.util, marshal, os, sys
library = os.path.dirname(os.__file__)
with open(os.path.join(sys.argv[1], "binary-python"), "wb") as compiled:
    for path in sorted(glob.glob(library + "/**/*.py", recursive=True)):
        try:
            code = compile(open(path, "rb").read(), path, "exec", dont_inherit=True)
        except (SyntaxError, ValueError):
            continue
        # The header of a .pyc file: magic, no flags, time, length (PEP 552).
        about = os.stat(path)
        compiled.write(importlib.util.MAGIC_NUMBER + b"\0" * 4)
        compiled.write((int(about.st_mtime) & 0xffffffff).to_bytes(4, "little") + about.st_size.to_bytes(4, "little"))
        compiled.write(marshal.dumps(code))
