# Functions shared by the recipes of file systems.
import os, random, shutil, subprocess, sys


def copied(roots, to, most_files, most_bytes=350 << 20):
    """Copies small files of `roots` with their folders, links and times to `to`, spread evenly; no name has a space."""
    paths = []
    for root in roots:
        for parent, folders, names in os.walk(root):
            folders[:] = sorted(name for name in folders if " " not in name)
            paths += [os.path.join(parent, name) for name in sorted(names) if not any(char.isspace() for char in name)]
    paths = paths[:: max(1, len(paths) // most_files)]
    total = 0
    for path in paths:
        about = os.lstat(path)
        target = to + path
        if about.st_size > 128 << 10 or total > most_bytes:
            continue
        os.makedirs(os.path.dirname(target), exist_ok=True)
        try:
            shutil.copy2(path, target, follow_symlinks=False)
            total += about.st_size
        except OSError:
            continue


def run(*command, **options):
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, **options)
    if done.returncode != 0:
        sys.exit(command[0] + " fails: " + done.stderr.decode(errors="replace").strip()[-300:])


out = sys.argv[1]
tree, image = os.path.join(out, "tree"), os.path.join(out, "image")
os.mkdir(tree)
