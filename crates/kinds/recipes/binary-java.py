# Class files, concatenated, as a class loader has them in memory.
import glob, os, subprocess, sys
work = os.path.join(sys.argv[1], "classes")
home = os.path.dirname(os.path.dirname(os.path.realpath(subprocess.run(["sh", "-c", "command -v jmod"], capture_output=True, text=True).stdout.strip())))
with open(os.path.join(sys.argv[1], "binary-java"), "wb") as classes:
    for module in ("java.base", "java.xml", "java.desktop", "jdk.compiler"):
        path = os.path.join(home, "jmods", module + ".jmod")
        folder = os.path.join(work, module)
        if os.path.exists(path) and subprocess.run(["jmod", "extract", "--dir", folder, path]).returncode == 0:
            for name in sorted(glob.glob(folder + "/classes/**/*.class", recursive=True)):
                classes.write(open(name, "rb").read())
