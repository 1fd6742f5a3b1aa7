# The metadata of an ext4 file system with a machine's libraries.
copied(["/usr/lib"], tree, 60000)
with open(image, "wb") as file:
    file.truncate(2 << 30)
run("mkfs.ext4", "-q", "-d", tree, image)
# A file with holes in place of everything except metadata.
run("e2image", "-r", image, os.path.join(out, "system-ext4"))
