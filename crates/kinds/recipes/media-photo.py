# Photographs, decoded: 8 bits per channel.
import glob, os, subprocess, sys
out = os.path.join(sys.argv[1], "media-photo")
os.mkdir(out)
for path in sorted(glob.glob("/usr/share/backgrounds/mate/nature/*.jpg")):
    with open(os.path.join(out, os.path.basename(path)), "wb") as picture:
        subprocess.run(["djpeg", "-pnm", "-maxmemory", "512m", path], stdout=picture, check=True)
