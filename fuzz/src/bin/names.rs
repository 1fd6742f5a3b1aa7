//! Prints the names of the codecs to fuzz, one a line.

fn main() {
    for name in pagefold_fuzz::names() {
        println!("{name}");
    }
}
