//! A client of the control socket sends arbitrary lines: each gets one reply, and a rejected one
//! changes nothing.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pagefold_control::{Batch, Manage, Model, answer, is_unseen};
use serde_json::Value;

fuzz_target!(|bytes: &[u8]| {
    let disks = Model::new();
    for line in bytes.split(|byte| *byte == b'\n') {
        let all = || disks.list(Batch { after: None, most: usize::MAX });
        let before = all();
        let text = answer(line, &disks);
        assert!(!text.contains('\n'));
        let answer: Value = serde_json::from_str(&text).expect("an answer is JSON");
        let after = all();
        match (answer.get("result"), answer.get("error")) {
            (Some(_), None) => {
                for disk in &after {
                    assert!(disk.size_bytes != 0 && disk.size_bytes % 512 == 0);
                    assert!(disk.name.len() <= 4096 && !disk.name.contains(is_unseen));
                }
            }
            (None, Some(error)) => {
                assert!(
                    error["code"].is_string() && error["message"].as_str().is_some_and(|message| !message.is_empty())
                );
                assert_eq!(before, after);
            }
            _ => panic!("{text}"),
        }
    }
});
