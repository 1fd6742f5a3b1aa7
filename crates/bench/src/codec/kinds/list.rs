//! All recipes, grouped by family and sorted by name.

use super::{
    found::{Wanted, begins_as_text, has_extension},
    recipe::{Family, Need, Recipe, RecipeSource, Yield},
    script::Script,
};
use crate::synthetic;

/// Debian's own Python, which has the modules of Debian's packages.
const SYSTEM_PYTHON: &[&str] = &["/usr/bin/python3"];

const fn script(command: &'static [&'static str], file: &'static str, source: &'static str) -> RecipeSource {
    RecipeSource::Script(Script { command, file, source, in_environment: false })
}

const fn of(name: &'static str, family: Family) -> Yield {
    Yield { name, family }
}

/// A Python program that has parsed modules and JSON and keeps objects, texts and numbers.
pub(crate) const PYTHON: Recipe = Recipe {
    name: "heap-python",
    first: true,
    needs: &[Need::Program("python3", "python3")],
    source: script(&["python3"], "heap.py", include_str!("../../../kinds/heap-python.py")),
    kinds: &[of("heap-python", Family::Heap)],
};

/// A Node program that keeps objects, maps, arrays and texts.
pub(crate) const NODE: Recipe = Recipe {
    name: "heap-node",
    first: true,
    needs: &[Need::Program("node", "nodejs")],
    source: script(&["node"], "heap.js", include_str!("../../../kinds/heap-node.js")),
    kinds: &[of("heap-node", Family::Heap)],
};

/// All recipes.
pub(super) const RECIPES: &[Recipe] = &[
    Recipe {
        name: "heap-emacs",
        first: false,
        needs: &[Need::Program("emacs", "emacs-nox"), Need::Path("/usr/lib/go", "golang-go")],
        source: script(
            &["emacs", "--quick", "--batch", "--load"],
            "heap.el",
            include_str!("../../../kinds/heap-emacs.el"),
        ),
        kinds: &[of("heap-emacs", Family::Heap)],
    },
    Recipe {
        name: "heap-go",
        first: false,
        needs: &[Need::Program("go", "golang-go"), Need::Path("/usr/share/nodejs/typescript", "node-typescript")],
        source: script(&["go", "run"], "heap.go", include_str!("../../../kinds/heap-go.go")),
        kinds: &[of("heap-go", Family::Heap)],
    },
    Recipe {
        name: "heap-java",
        first: false,
        needs: &[
            Need::Program("javac", "default-jdk-headless"),
            Need::Path("/usr/lib/go", "golang-go"),
            Need::Path("/usr/share/unicode/UnicodeData.txt", "unicode-data"),
        ],
        source: script(&["java", "-Xmx512m"], "Heap.java", include_str!("../../../kinds/heap-java.java")),
        kinds: &[of("heap-java", Family::Heap)],
    },
    NODE,
    PYTHON,
    Recipe {
        name: "heap-redis",
        first: false,
        needs: &[
            Need::Program("redis-server", "redis-server"),
            Need::Path("/usr/share/doc/installation-guide-amd64", "installation-guide-amd64"),
        ],
        source: script(SYSTEM_PYTHON, "redis.py", include_str!("../../../kinds/heap-redis.py")),
        kinds: &[of("heap-redis", Family::Heap)],
    },
    Recipe {
        name: "heap-ruby",
        first: false,
        needs: &[Need::Program("ruby", "ruby"), Need::Path("/usr/share/iso-codes/json", "iso-codes")],
        source: script(&["ruby"], "heap.rb", include_str!("../../../kinds/heap-ruby.rb")),
        kinds: &[of("heap-ruby", Family::Heap)],
    },
    Recipe {
        name: "database",
        first: true,
        needs: &[Need::Program("python3", "python3")],
        source: script(&["python3"], "database.py", include_str!("../../../kinds/database.py")),
        kinds: &[of("database", Family::Database)],
    },
    Recipe {
        name: "database-lmdb",
        first: false,
        needs: &[
            Need::Path("/usr/lib/python3/dist-packages/lmdb", "python3-lmdb"),
            Need::Path("/usr/lib/go", "golang-go"),
            Need::Path("/usr/share/unicode/UnicodeData.txt", "unicode-data"),
        ],
        source: script(SYSTEM_PYTHON, "lmdb-file.py", include_str!("../../../kinds/database-lmdb.py")),
        kinds: &[of("database-lmdb", Family::Database)],
    },
    Recipe {
        name: "database-mariadb",
        first: false,
        needs: &[
            Need::Program("mariadbd", "mariadb-server"),
            Need::Path("/usr/share/dictd/gcide.dict.dz", "dict-gcide"),
        ],
        source: script(SYSTEM_PYTHON, "mariadb.py", include_str!("../../../kinds/database-mariadb.py")),
        kinds: &[of("database-mariadb", Family::Database), of("database-mariadb-memory", Family::Database)],
    },
    Recipe {
        name: "database-postgres",
        first: false,
        needs: &[
            Need::Path("/usr/share/postgresql-common", "postgresql"),
            Need::Path("/usr/share/ieee-data/oui.csv", "ieee-data"),
        ],
        source: script(SYSTEM_PYTHON, "postgres.py", include_str!("../../../kinds/database-postgres.py")),
        kinds: &[
            of("database-postgres", Family::Database),
            of("database-postgres-memory", Family::Database),
            of("text-log-postgres", Family::Text),
        ],
    },
    Recipe {
        name: "database-sysbench",
        first: false,
        needs: &[Need::Program("mariadbd", "mariadb-server"), Need::Program("sysbench", "sysbench")],
        source: script(SYSTEM_PYTHON, "sysbench.py", include_str!("../../../kinds/database-sysbench.py")),
        kinds: &[of("database-sysbench", Family::Database)],
    },
    Recipe {
        name: "text",
        first: true,
        needs: &[],
        source: RecipeSource::Files(Wanted {
            roots: &["/usr/share/doc", "/usr/include", "/usr/share/perl"],
            takes: |path, first| !has_extension(path, &["html", "json"]) && begins_as_text(first),
        }),
        kinds: &[of("text", Family::Text)],
    },
    Recipe {
        name: "text-csv",
        first: false,
        needs: &[
            Need::Path("/usr/share/ieee-data/oui.csv", "ieee-data"),
            Need::Path("/usr/share/unicode/UnicodeData.txt", "unicode-data"),
        ],
        source: RecipeSource::Files(Wanted {
            roots: &["/usr/share/ieee-data", "/usr/share/unicode/UnicodeData.txt", "/usr/share/unicode/auxiliary"],
            takes: |path, _| has_extension(path, &["csv"]) || path.ends_with("UnicodeData.txt"),
        }),
        kinds: &[of("text-csv", Family::Text)],
    },
    Recipe {
        name: "text-html",
        first: false,
        needs: &[Need::Path("/usr/share/doc/installation-guide-amd64", "installation-guide-amd64")],
        source: RecipeSource::Files(Wanted {
            roots: &["/usr/share/doc"],
            takes: |path, first| has_extension(path, &["html"]) && begins_as_text(first),
        }),
        kinds: &[of("text-html", Family::Text)],
    },
    Recipe {
        name: "text-json",
        first: false,
        needs: &[Need::Path("/usr/share/iso-codes/json", "iso-codes")],
        source: RecipeSource::Files(Wanted {
            roots: &["/usr/share", "/usr/lib"],
            takes: |path, first| has_extension(path, &["json"]) && begins_as_text(first),
        }),
        kinds: &[of("text-json", Family::Text)],
    },
    Recipe {
        name: "text-languages",
        first: false,
        needs: &[
            Need::Path("/usr/share/man/de", "manpages-de"),
            Need::Path("/usr/share/man/es", "manpages-es"),
            Need::Path("/usr/share/man/fr", "manpages-fr"),
            Need::Path("/usr/share/man/ja", "manpages-ja"),
            Need::Path("/usr/share/man/pl", "manpages-pl"),
            Need::Path("/usr/share/man/ru", "manpages-ru"),
            Need::Path("/usr/share/man/zh_CN", "manpages-zh"),
        ],
        source: script(SYSTEM_PYTHON, "languages.py", include_str!("../../../kinds/text-languages.py")),
        kinds: &[of("text-languages", Family::Text)],
    },
    Recipe {
        name: "text-log-trace",
        first: false,
        needs: &[Need::Program("strace", "strace"), Need::Program("perl", "perl")],
        source: script(SYSTEM_PYTHON, "trace.py", include_str!("../../../kinds/text-log-trace.py")),
        kinds: &[of("text-log-trace", Family::Text)],
    },
    Recipe {
        name: "text-prose",
        first: false,
        needs: &[Need::Path("/usr/share/dictd/gcide.dict.dz", "dict-gcide")],
        source: script(SYSTEM_PYTHON, "prose.py", include_str!("../../../kinds/text-prose.py")),
        kinds: &[of("text-prose", Family::Text)],
    },
    Recipe {
        name: "text-source-go",
        first: false,
        needs: &[Need::Path("/usr/lib/go", "golang-go")],
        source: RecipeSource::Files(Wanted {
            roots: &["/usr/share"],
            takes: |path, first| has_extension(path, &["go"]) && begins_as_text(first),
        }),
        kinds: &[of("text-source-go", Family::Text)],
    },
    Recipe {
        name: "text-source-javascript",
        first: false,
        needs: &[
            Need::Path("/usr/share/nodejs/typescript", "node-typescript"),
            Need::Path("/usr/share/javascript/three", "libjs-three"),
        ],
        source: RecipeSource::Files(Wanted {
            roots: &["/usr/share/nodejs", "/usr/share/javascript"],
            takes: |path, first| has_extension(path, &["js"]) && begins_as_text(first),
        }),
        kinds: &[of("text-source-javascript", Family::Text)],
    },
    Recipe {
        name: "xml",
        first: true,
        needs: &[],
        source: RecipeSource::Files(Wanted {
            roots: &["/usr/share"],
            takes: |path, _| has_extension(path, &["xml", "svg", "rng", "ui"]),
        }),
        kinds: &[of("xml", Family::Text)],
    },
    Recipe {
        name: "binaries",
        first: true,
        needs: &[],
        source: RecipeSource::Files(Wanted {
            roots: &["/usr/bin", "/usr/lib"],
            // Machine 62 is x86-64. Cross compilers' libraries and debug information are other
            // kinds.
            takes: |path, first| {
                first.starts_with(b"\x7fELF")
                    && first.get(18..20) == Some(&[62, 0])
                    && !path.starts_with("/usr/lib/debug")
            },
        }),
        kinds: &[of("binaries", Family::Binary)],
    },
    Recipe {
        name: "binary-arm64",
        first: false,
        needs: &[
            Need::Path("/usr/aarch64-linux-gnu/lib/libc.so.6", "libc6-arm64-cross"),
            Need::Path("/usr/aarch64-linux-gnu/lib/libstdc++.so.6", "libstdc++6-arm64-cross"),
            Need::Path("/usr/aarch64-linux-gnu/lib/libgfortran.so.5", "libgfortran5-arm64-cross"),
            Need::Path("/usr/aarch64-linux-gnu/lib/libasan.so.8", "libasan8-arm64-cross"),
        ],
        source: RecipeSource::Files(Wanted {
            roots: &["/usr/aarch64-linux-gnu"],
            takes: |_, first| first.starts_with(b"\x7fELF"),
        }),
        kinds: &[of("binary-arm64", Family::Binary)],
    },
    Recipe {
        name: "binary-debug",
        first: false,
        needs: &[Need::Path("/usr/lib/debug/.build-id", "libc6-dbg"), Need::Program("objcopy", "binutils")],
        source: script(SYSTEM_PYTHON, "debug.py", include_str!("../../../kinds/binary-debug.py")),
        kinds: &[of("binary-debug", Family::Binary)],
    },
    Recipe {
        name: "binary-fonts",
        first: false,
        needs: &[Need::Path("/usr/share/fonts/truetype/dejavu/DejaVuSansCondensed.ttf", "fonts-dejavu-extra")],
        source: RecipeSource::Files(Wanted {
            roots: &["/usr/share/fonts"],
            takes: |path, _| has_extension(path, &["ttf", "otf"]),
        }),
        kinds: &[of("binary-fonts", Family::Binary)],
    },
    Recipe {
        name: "binary-java",
        first: false,
        needs: &[Need::Program("jmod", "default-jdk-headless")],
        source: script(SYSTEM_PYTHON, "classes.py", include_str!("../../../kinds/binary-java.py")),
        kinds: &[of("binary-java", Family::Binary)],
    },
    Recipe {
        name: "binary-python",
        first: false,
        needs: &[Need::Program("python3", "python3")],
        source: script(SYSTEM_PYTHON, "compiled.py", include_str!("../../../kinds/binary-python.py")),
        kinds: &[of("binary-python", Family::Binary)],
    },
    Recipe {
        name: "images",
        first: true,
        needs: &[],
        source: RecipeSource::Files(Wanted {
            roots: &["/usr/share", "/usr/lib"],
            takes: |path, _| has_extension(path, &["png", "jpg", "gif", "ico"]),
        }),
        kinds: &[of("images", Family::Media)],
    },
    Recipe {
        name: "media-drawing",
        first: false,
        needs: &[
            Need::Program("pngtopam", "netpbm"),
            Need::Path("/usr/share/doc/installation-guide-amd64", "installation-guide-amd64"),
        ],
        source: script(SYSTEM_PYTHON, "drawing.py", include_str!("../../../kinds/media-drawing.py")),
        kinds: &[of("media-drawing", Family::Media)],
    },
    Recipe {
        name: "media-photo",
        first: false,
        needs: &[
            Need::Program("djpeg", "libjpeg-turbo-progs"),
            Need::Path("/usr/share/backgrounds/mate/nature", "mate-backgrounds"),
        ],
        source: script(SYSTEM_PYTHON, "photo.py", include_str!("../../../kinds/media-photo.py")),
        kinds: &[of("media-photo", Family::Media)],
    },
    Recipe {
        name: "media-sound",
        first: false,
        needs: &[
            Need::Path("/usr/share/midi/freepats", "freepats"),
            Need::Path("/usr/share/sounds/alsa", "alsa-utils"),
        ],
        source: RecipeSource::Files(Wanted {
            roots: &["/usr/share/midi/freepats", "/usr/share/sounds"],
            takes: |path, _| has_extension(path, &["pat", "wav"]),
        }),
        kinds: &[of("media-sound", Family::Media)],
    },
    Recipe {
        name: "number-columns",
        first: false,
        needs: &[
            Need::Module("pyarrow"),
            Need::Path("/usr/share/ieee-data/oui.csv", "ieee-data"),
            Need::Path("/usr/share/unicode/UnicodeData.txt", "unicode-data"),
        ],
        source: RecipeSource::Script(Script {
            command: &["python3"],
            file: "columns.py",
            source: include_str!("../../../kinds/number-columns.py"),
            in_environment: true,
        }),
        kinds: &[of("number-arrow", Family::Number), of("number-parquet", Family::Number)],
    },
    Recipe {
        name: "number-double",
        first: false,
        needs: &[Need::Path("/usr/share/wsjtx/JPLEPH", "wsjtx-data")],
        source: script(SYSTEM_PYTHON, "double.py", include_str!("../../../kinds/number-double.py")),
        kinds: &[of("number-double", Family::Number)],
    },
    Recipe {
        name: "number-integer",
        first: false,
        needs: &[Need::Path("/usr/lib/go", "golang-go")],
        source: script(SYSTEM_PYTHON, "integer.py", include_str!("../../../kinds/number-integer.py")),
        kinds: &[of("number-integer", Family::Number)],
    },
    Recipe {
        name: "number-single",
        first: false,
        needs: &[
            Need::Program("djpeg", "libjpeg-turbo-progs"),
            Need::Path("/usr/share/backgrounds/mate/nature", "mate-backgrounds"),
        ],
        source: script(SYSTEM_PYTHON, "single.py", include_str!("../../../kinds/number-single.py")),
        kinds: &[of("number-single", Family::Number)],
    },
    Recipe {
        name: "system-btrfs",
        first: false,
        needs: &[Need::Program("mkfs.btrfs", "btrfs-progs")],
        source: script(
            SYSTEM_PYTHON,
            "btrfs.py",
            concat!(include_str!("../../../kinds/tree.py"), include_str!("../../../kinds/system-btrfs.py")),
        ),
        kinds: &[of("system-btrfs", Family::System)],
    },
    Recipe {
        name: "system-ext4",
        first: false,
        needs: &[Need::Program("mkfs.ext4", "e2fsprogs")],
        source: script(
            SYSTEM_PYTHON,
            "ext4.py",
            concat!(include_str!("../../../kinds/tree.py"), include_str!("../../../kinds/system-ext4.py")),
        ),
        kinds: &[of("system-ext4", Family::System)],
    },
    Recipe {
        name: "system-guest",
        first: false,
        needs: &[
            Need::Program("qemu-system-x86_64", "qemu-system-x86"),
            Need::Program("mkfs.ext4", "e2fsprogs"),
            Need::Program("perl", "perl"),
            Need::Guest,
        ],
        source: script(SYSTEM_PYTHON, "guest.py", include_str!("../../../kinds/system-guest.py")),
        kinds: &[
            of("system-guest-disk", Family::System),
            of("system-guest-memory", Family::System),
            of("system-guest-page-tables", Family::System),
        ],
    },
    Recipe {
        name: "system-xfs",
        first: false,
        needs: &[Need::Program("mkfs.xfs", "xfsprogs")],
        source: script(
            SYSTEM_PYTHON,
            "xfs.py",
            concat!(include_str!("../../../kinds/tree.py"), include_str!("../../../kinds/system-xfs.py")),
        ),
        kinds: &[of("system-xfs", Family::System)],
    },
    Recipe {
        name: "synthetic-25",
        first: true,
        needs: &[],
        source: RecipeSource::Synthetic(25),
        kinds: &[of("synthetic-25", Family::Synthetic)],
    },
    Recipe {
        name: "synthetic-50",
        first: true,
        needs: &[],
        source: RecipeSource::Synthetic(50),
        kinds: &[of("synthetic-50", Family::Synthetic)],
    },
    Recipe {
        name: "synthetic-75",
        first: true,
        needs: &[],
        source: RecipeSource::Synthetic(75),
        kinds: &[of("synthetic-75", Family::Synthetic)],
    },
    Recipe {
        name: "synthetic-table-space",
        first: true,
        needs: &[],
        source: RecipeSource::Made(synthetic::table_space),
        kinds: &[of("synthetic-table-space", Family::Synthetic)],
    },
];
