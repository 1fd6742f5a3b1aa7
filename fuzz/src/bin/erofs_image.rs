//! Opens, checks and reads arbitrary bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pagefold_erofs::Image;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(image) = Image::open(bytes.to_vec()) {
        let report = image.check(1);
        assert!(report.more_problems == 0 || report.problems.len() == 1000);
    }
});
