//! Huge pages of the server and the command that it runs.

/// Sets whether this process and those that it starts may use huge pages. Where the system uses
/// them unasked, a thread's stack or a heap with a single touched page would otherwise take 2 MiB,
/// which no limit could account for.
pub(super) fn set_huge_pages(may: bool) {
    // Kernels without huge pages refuse.
    let _ = rustix::thread::disable_transparent_huge_pages(!may);
}
