# Arrays of 32-bit floats: photographs in linear light with three channels, as an editor keeps them,
# and their smoothed brightness.
import array, glob, os, subprocess, sys
out = os.path.join(sys.argv[1], "number-single")
os.mkdir(out)
# The sRGB transfer function (IEC 61966-2-1).
linear = [value / 255 / 12.92 if value <= 10 else ((value / 255 + 0.055) / 1.055) ** 2.4 for value in range(256)]
for path in sorted(glob.glob("/usr/share/backgrounds/mate/nature/*.jpg"))[:14]:
    picture = subprocess.run(["djpeg", "-pnm", "-scale", "1/4", path], stdout=subprocess.PIPE, check=True).stdout
    header, size, depth, pixels = picture.split(b"\n", 3)
    if header != b"P6" or depth != b"255":
        continue
    width = int(size.split()[0])
    pixels = pixels[: 250000 * 3]
    light = array.array("f", (linear[value] for value in pixels))
    bright = array.array("f", (0.2126 * light[at] + 0.7152 * light[at + 1] + 0.0722 * light[at + 2] for at in range(0, len(light) - 2, 3)))
    mean, smooth = 0.0, array.array("f")
    for value in bright:
        mean += (value - mean) / 8
        smooth.append(mean)
    with open(os.path.join(out, os.path.basename(path)), "wb") as file:
        light.tofile(file)
        smooth.tofile(file)
