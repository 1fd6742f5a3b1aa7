//! Every line gets one answer, with the line's id and the outcome.

use pagefold_control::{Model, answer, is_unseen, split_snapshot_name};
use proptest::{collection::vec, prelude::*};
use serde_json::{Value, json};

fn ask(line: &str, disks: &Model) -> Value {
    serde_json::from_str(&answer(line.as_bytes(), disks)).expect("an answer is JSON")
}

fn disks(disks: &Model) -> Vec<(String, u64, Option<u64>)> {
    let listing = ask(r#"{"command":"list"}"#, disks);
    let disks = listing["result"]["disks"].as_array().expect("disks").iter();
    disks
        .map(|disk| {
            let name = disk["name"].as_str().expect("a name").to_owned();
            (name, disk["size_bytes"].as_u64().expect("a size"), disk["limit_bytes"].as_u64())
        })
        .collect()
}

/// Returns valid and invalid field values.
fn value() -> impl Strategy<Value = Value> {
    prop_oneof![
        4 => "[a-c]".prop_map(Value::from),
        1 => any::<String>().prop_map(Value::from),
        4 => (0..4_u64).prop_map(|count| Value::from(count * 512)),
        1 => any::<u64>().prop_map(Value::from),
        1 => any::<f64>().prop_map(Value::from),
        2 => any::<bool>().prop_map(Value::from),
        1 => Just(Value::Null),
        1 => Just(json!([{ "name": [] }])),
        2 => vec("[a-d]", 0..3).prop_map(Value::from),
    ]
}

fn request() -> impl Strategy<Value = Value> {
    let commands = [
        "list",
        "stat",
        "add",
        "add-base",
        "fork",
        "snapshot",
        "rollback",
        "changes",
        "drop",
        "remove",
        "resize",
        "rename",
        "reset",
        "limit",
        "limit-connections",
        "quota",
        "compact",
        "other",
    ];
    let fields = [
        "path",
        "inside",
        "format",
        "name",
        "to",
        "size_bytes",
        "limit_bytes",
        "shrink",
        "force",
        "read_only",
        "seconds",
        "connections",
        "bytes_per_second",
        "quota",
        "from",
        "names",
        "snapshot",
        "snapshots",
        "id",
        "foo",
    ];
    let field = (prop::sample::select(fields.to_vec()), value());
    (prop::sample::select(commands.to_vec()), vec(field, 0..5)).prop_map(|(command, fields)| {
        let mut request = json!({ "command": command });
        for (name, value) in fields {
            request[name] = value;
        }
        request
    })
}

proptest! {
    #[test]
    fn any_bytes_get_one_line(bytes in vec(any::<u8>(), 0..200)) {
        let line = answer(&bytes, &Model::new());
        prop_assert!(!line.contains('\n'));
        let answer: Value = serde_json::from_str(&line).expect("an answer is JSON");
        prop_assert_eq!(&answer["id"], &Value::Null);
        prop_assert_eq!(&answer["error"]["code"], "invalid-request");
    }

    #[test]
    fn a_request_is_done_or_changes_nothing(requests in vec(request(), 1..40)) {
        let model = Model::new();
        for request in requests {
            let before = disks(&model);
            let answer = ask(&request.to_string(), &model);
            let fails = !answer["error"].is_null();
            prop_assert!(fails != answer.get("result").is_some(), "{}", answer);
            let id = request.get("id").filter(|id| id.is_string() || id.is_u64() || id.is_i64());
            prop_assert_eq!(&answer["id"], id.unwrap_or(&Value::Null));
            let after = disks(&model);
            if fails {
                prop_assert!(answer["error"]["message"].as_str().is_some_and(|message| !message.is_empty()));
                prop_assert_eq!(before, after, "{} {}", request, answer);
            } else {
                prop_assert!(request.get("foo").is_none() && request["command"] != "other", "{}", request);
                let names: Vec<_> = after.iter().map(|(name, ..)| name.clone()).collect();
                for (name, size_bytes, _) in after {
                    if let Some((disk, snapshot)) = split_snapshot_name(&name) {
                        prop_assert!(names.iter().any(|name| name == disk) && !snapshot.contains('@'), "{}", name);
                    }
                    prop_assert!(size_bytes != 0 && size_bytes % 512 == 0);
                    prop_assert!(name.len() <= 4096 && !name.contains(is_unseen));
                }
            }
        }
    }
}

#[test]
fn commands_have_their_effects() {
    let model = Model::new();
    for (line, expected) in [
        (r#"{"id":1,"command":"add","name":"a","size_bytes":1024}"#, vec![("a", 1024, None)]),
        (
            r#"{"command":"add","name":"b","size_bytes":512,"limit_bytes":8192}"#,
            vec![("a", 1024, None), ("b", 512, Some(8192))],
        ),
        (
            r#"{"command":"resize","name":"a","size_bytes":512,"shrink":true}"#,
            vec![("a", 512, None), ("b", 512, Some(8192))],
        ),
        (r#"{"command":"limit","name":"b","limit_bytes":null}"#, vec![("a", 512, None), ("b", 512, None)]),
        (r#"{"command":"rename","name":"b","to":"c"}"#, vec![("a", 512, None), ("c", 512, None)]),
        (r#"{"command":"remove","name":"a"}"#, vec![("c", 512, None)]),
        (
            r#"{"command":"add-base","name":"d","path":"/d.erofs","inside":"/d","format":"erofs"}"#,
            vec![("c", 512, None), ("d", 512, None)],
        ),
    ] {
        let answer = ask(line, &model);
        assert!(answer["error"].is_null(), "{line}: {answer}");
        let expected: Vec<_> = expected.into_iter().map(|(name, size, limit)| (name.to_owned(), size, limit)).collect();
        assert_eq!(disks(&model), expected, "{line}");
    }
    assert_eq!(answer(br#" {"id":-5,"command":"stop"} "#, &model), r#"{"id":-5,"result":{"waits_for":[]}}"#);
    assert!(model.is_stopped());
}

/// Values that no disk can have are refused in every command that could set them.
#[test]
fn impossible_names_limits_and_times_are_refused() {
    let model = Model::new();
    ask(r#"{"command":"add","name":"a","size_bytes":512}"#, &model);
    for (line, code) in [
        (r#"{"command":"add","name":"b","size_bytes":512,"limit_bytes":4096}"#, "invalid-limit"),
        (r#"{"command":"fork","from":"a","names":["b"],"limit_bytes":10}"#, "invalid-limit"),
        (r#"{"command":"limit","name":"a","limit_bytes":0}"#, "invalid-limit"),
        (r#"{"command":"limit","name":"a","limit_bytes":8191}"#, "invalid-limit"),
        (r#"{"command":"compact","seconds":61}"#, "invalid-request"),
        (r#"{"command":"add","name":"b","size_bytes":512,"quota":{"connections":0}}"#, "invalid-request"),
        (r#"{"command":"add-base","name":"b","path":"/b","quota":{"bytes_per_second":65535}}"#, "invalid-request"),
        (r#"{"command":"fork","from":"a","names":["b"],"quota":{"connections":0}}"#, "invalid-request"),
        (r#"{"command":"fork","from":"a","names":["b"],"quota":{"rate":1}}"#, "invalid-request"),
        (r#"{"command":"add","name":"b\u202e","size_bytes":512}"#, "invalid-name"),
        (r#"{"command":"add-base","name":"\u200b","path":"/b"}"#, "invalid-name"),
        (r#"{"command":"fork","from":"a","names":["b","c\u2028"]}"#, "invalid-name"),
        (r#"{"command":"snapshot","name":"a","snapshot":"\u3164"}"#, "invalid-name"),
        (r#"{"command":"rename","name":"a","to":"\u00ada"}"#, "invalid-name"),
    ] {
        let answer = ask(line, &model);
        assert_eq!(answer["error"]["code"], code, "{line}: {answer}");
        assert_eq!(disks(&model), [("a".to_owned(), 512, None)], "{line}");
    }
    for line in [r#"{"command":"compact","seconds":60}"#, r#"{"command":"limit","name":"a","limit_bytes":8192}"#] {
        assert!(ask(line, &model)["error"].is_null(), "{line}");
    }
}
