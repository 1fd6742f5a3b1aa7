# The metadata of an XFS file system with a machine's libraries.
copied(["/usr/lib"], tree, 30000, most_bytes=200 << 20)


def described(folder, lines, depth):
    """The lines of a folder's content in a prototype file (mkfs.xfs(8))."""
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        mode = "%03o %d %d" % (os.lstat(path).st_mode & 0o777, 0, 0)
        if os.path.islink(path):
            lines.append("%s l--%s %s" % (name, mode, os.readlink(path)))
        elif os.path.isdir(path):
            lines.append("%s d--%s" % (name, mode))
            described(path, lines, depth + 1)
            lines.append("$")
        elif os.path.isfile(path):
            lines.append("%s ---%s %s" % (name, mode, path))


lines = ["/none", "0 0", "d--755 0 0"]
described(tree, lines, 1)
lines.append("$")
prototype = os.path.join(out, "prototype")
with open(prototype, "w") as file:
    file.write("\n".join(lines) + "\n")
run("mkfs.xfs", "-q", "-d", "file,size=1g,name=" + image, "-p", prototype)
dump = os.path.join(out, "dump")
# Verbatim: names are not obfuscated, and unused parts are not zeroed.
run("xfs_metadump", "-a", "-o", image, dump)
run("xfs_mdrestore", dump, os.path.join(out, "system-xfs"))
