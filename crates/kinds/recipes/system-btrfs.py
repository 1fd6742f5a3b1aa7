# The metadata of a btrfs file system with a machine's shared files.
copied(["/usr/share"], tree, 60000)
with open(image, "wb") as file:
    file.truncate(2 << 30)
run("mkfs.btrfs", "-q", "--metadata", "single", "--rootdir", tree, image)
dump = os.path.join(out, "dump")
run("btrfs-image", "-c", "0", image, dump)
# A file with holes in place of everything except metadata.
run("btrfs-image", "-r", dump, os.path.join(out, "system-btrfs"))
