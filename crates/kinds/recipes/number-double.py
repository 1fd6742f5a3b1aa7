# Arrays of 64-bit floats: coefficients of an ephemeris, simulated orbits, a wave on a grid,
# statistics of files.
import array, math, os, sys
out = os.path.join(sys.argv[1], "number-double")
os.mkdir(out)
with open(os.path.join(out, "ephemeris"), "wb") as file:
    file.write(open("/usr/share/wsjtx/JPLEPH", "rb").read())


def keep(name, numbers):
    with open(os.path.join(out, name), "wb") as file:
        array.array("d", numbers).tofile(file)


# Five bodies by the leapfrog method: all positions and velocities, step by step. Units: AU, days,
# solar masses.
bodies = [[0, 0, 0, 0, 0, 0, 1.0], [5.2, 0, 0.1, 0, 0.0075, 0, 9.5e-4], [0, 9.55, 0.3, -0.0056, 0, 0.0001, 2.9e-4],
    [-19.2, 0, -0.2, 0, -0.0039, 0, 4.4e-5], [0.1, -30.1, 0.5, 0.0031, 0, 0, 5.1e-5]]
pull, step, orbits = 2.959e-4, 20.0, []
for _ in range(16000):
    for body in bodies:
        for axis in range(3):
            body[axis] += body[3 + axis] * step / 2
    for body in bodies:
        for other in bodies:
            if other is not body:
                way = [other[axis] - body[axis] for axis in range(3)]
                strength = pull * other[6] / math.dist(body[:3], other[:3]) ** 3
                for axis in range(3):
                    body[3 + axis] += way[axis] * strength * step
    for body in bodies:
        for axis in range(3):
            body[axis] += body[3 + axis] * step / 2
        orbits += body[:6]
keep("orbits", orbits)

# A drum: the wave equation on 120 x 120 points, every fifth step.
size = 120
now = [[math.exp(-((x - 40) ** 2 + (y - 70) ** 2) / 60) for x in range(size)] for y in range(size)]
before, frames = [row[:] for row in now], []
for number in range(150):
    after = [[0.0] * size for _ in range(size)]
    for y in range(1, size - 1):
        up, here, down, old, new = now[y - 1], now[y], now[y + 1], before[y], after[y]
        for x in range(1, size - 1):
            new[x] = 2 * here[x] - old[x] + 0.2 * (up[x] + down[x] + here[x - 1] + here[x + 1] - 4 * here[x])
    before, now = now, after
    if number % 5 == 4:
        frames += [value for row in now for value in row]
keep("wave", frames)
ages = []
for parent, folders, names in os.walk("/usr/lib"):
    folders.sort()
    for name in sorted(names)[:20]:
        try:
            about = os.lstat(os.path.join(parent, name))
        except OSError:
            continue
        ages += [about.st_mtime, math.log1p(about.st_size)]
keep("files", ages[:150000])
