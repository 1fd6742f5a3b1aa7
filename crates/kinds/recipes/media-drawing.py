# Drawn pictures and screenshots, decoded: 8 bits per channel, with the alpha channel if present.
import os, subprocess, sys
out = os.path.join(sys.argv[1], "media-drawing")
os.mkdir(out)
paths = []
for root in ("/usr/share", "/usr/lib"):
    for parent, folders, names in os.walk(root):
        folders.sort()
        paths += [os.path.join(parent, name) for name in sorted(names) if name.endswith(".png")]
paths = [path for path in paths if not os.path.islink(path) and 1500 < os.path.getsize(path) < 2 << 20]
total = 0
for number, path in enumerate(paths[:: max(1, len(paths) // 1500)]):
    decoded = subprocess.run(["pngtopam", "-alphapam", path], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
    # A large picture should not dominate the kind.
    if 4096 <= len(decoded) <= 8 << 20:
        with open(os.path.join(out, "%05d" % number), "wb") as picture:
            picture.write(decoded)
        total += len(decoded)
    if total > 200 << 20:
        break
