//! Prints the names of the codecs to fuzz, one per line: page codecs, or with `cluster`, cluster
//! codecs.

fn main() {
    if std::env::args().nth(1).as_deref() == Some("cluster") {
        return pagefold_fuzz::CLUSTER_CODECS.iter().for_each(|name| println!("{name}"));
    }
    for name in pagefold_fuzz::names() {
        println!("{name}");
    }
}
