//! Turns a request's line into the answer's line.

use std::{
    fmt, io,
    os::fd::OwnedFd,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use serde::{
    Deserialize, Serialize,
    de::{self, MapAccess, Visitor},
};
use serde_json::{Map, Value, json};

use crate::{
    Batch, Code, Command, DiskRecord, DiskStat, Failure, Held, Manage, Stat, check_limit, check_name, check_size,
    name::{check_new_name, check_snapshot},
};

/// The names of the commands.
const COMMANDS: [&str; 26] = [
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
    "freeze",
    "frozen-runs",
    "serve-device",
    "device-fault",
    "end-device",
    "spare",
    "bind-spare",
    "take-over",
    "stop",
];

/// Disks per batch of an answer. Small, because a name may take up to 24 KiB of JSON each time it
/// occurs.
const BATCH_DISKS: usize = 8;

/// An answer about many disks is sent in parts of this size, so its memory does not grow with their
/// number.
const PART_BYTES: usize = 16 << 10;

/// Maximum duration of a compact request.
const MAX_COMPACT_SECONDS: u64 = 60;

/// Executes the request in `line` on `disks` and returns the answer: one line of JSON without its
/// end.
///
/// Any input gets an answer. Input that is not a valid request gets an error with the code
/// `invalid-request`, which names the field. The answer has the request's id, or `null` if there is
/// no readable id. Since there is no connection here, an instant made by `freeze` ends immediately.
pub fn answer(line: &[u8], disks: &dyn Manage) -> String {
    let mut answer = String::new();
    let mut holding = Holding { held: &mut Vec::new(), may_hold: &|| true, passed: None };
    let whole = answer_in_parts(line.to_vec(), disks, &Mutex::default(), &mut holding, &mut |part| {
        answer.push_str(part);
        Ok(())
    });
    debug_assert!(whole.is_ok(), "a string takes all parts");
    answer.pop();
    answer
}

/// The objects that a connection holds.
pub(crate) struct Holding<'a> {
    /// Objects that live as long as the connection.
    pub(crate) held: &'a mut Vec<Held>,
    /// Returns whether the connection may hold any.
    pub(crate) may_hold: &'a dyn Fn() -> bool,
    /// The file that came with the request.
    pub(crate) passed: Option<OwnedFd>,
}

/// Like [`answer`], but passes the answer to `send` in parts, including the line end. Objects that
/// must live as long as the connection are added to `holding`. Returns the errors of `send`.
pub(crate) fn answer_in_parts(
    line: Vec<u8>,
    disks: &dyn Manage,
    parsing: &Mutex<()>,
    holding: &mut Holding<'_>,
    send: &mut dyn FnMut(&str) -> io::Result<()>,
) -> io::Result<()> {
    let (id, command) = {
        let _turn = parsing.lock().unwrap_or_else(PoisonError::into_inner);
        parse(&line)
    };
    drop(line);
    let command = match command {
        Ok(command) => command,
        Err(failure) => return send(&(refusal(&id, &failure) + "\n")),
    };
    let mut parts = Parts { pending: format!(r#"{{"id":{id},"result":"#), send };
    match perform(command, disks, holding) {
        Err(failure) => return parts.refuse(&id, &failure),
        Ok(Outcome::Whole(result)) => parts.add(&result)?,
        Ok(Outcome::Disks) => {
            parts.add(r#"{"disks":["#)?;
            parts.add_disks(|batch| disks.list(batch), |disk: &DiskRecord| &disk.name)?;
            parts.add("]}")?;
        }
        Ok(Outcome::Some(records)) => {
            parts.add(r#"{"disks":["#)?;
            for (index, record) in records.iter().enumerate() {
                let comma = if index > 0 { "," } else { "" };
                parts.add(&format!("{comma}{}", serde_json::to_string(record)?))?;
            }
            parts.add("]}")?;
        }
        Ok(Outcome::Figures { server }) => {
            parts.add(&format!(r#"{{"server":{server},"disks":["#))?;
            parts.add_disks(|batch| disks.stats(batch), |disk: &DiskStat| &disk.name)?;
            parts.add("]}")?;
        }
    }
    parts.end()
}

/// Returns the id, and the command if it is valid.
fn parse(line: &[u8]) -> (Value, Result<Command, Failure>) {
    match serde_json::from_slice::<Fields>(line) {
        Err(error) => (Value::Null, Err(Failure::new(Code::InvalidRequest, format!("not a JSON object: {error}")))),
        Ok(Fields(mut fields)) => match take_id(&mut fields) {
            Err(failure) => (Value::Null, Err(failure)),
            Ok(id) => (id, command(fields)),
        },
    }
}

/// An answer that is being sent.
struct Parts<'a> {
    pending: String,
    send: &'a mut dyn FnMut(&str) -> io::Result<()>,
}

impl Parts<'_> {
    fn add(&mut self, text: &str) -> io::Result<()> {
        self.pending += text;
        if self.pending.len() >= PART_BYTES {
            (self.send)(&self.pending)?;
            self.pending.clear();
        }
        Ok(())
    }

    /// Adds the records of all disks. A disk that is renamed in the meantime may occur twice or not
    /// at all.
    fn add_disks<R: Serialize>(
        &mut self,
        next: impl Fn(Batch<'_>) -> Vec<R>,
        name: impl Fn(&R) -> &str,
    ) -> io::Result<()> {
        let mut after: Option<String> = None;
        loop {
            let records = next(Batch { after: after.as_deref(), most: BATCH_DISKS });
            let Some(last) = records.last() else { return Ok(()) };
            for (index, record) in records.iter().enumerate() {
                if after.is_some() || index > 0 {
                    self.add(",")?;
                }
                self.add(&serde_json::to_string(record)?)?;
            }
            after = Some(name(last).to_owned());
        }
    }

    /// Sends a failure instead of a result, of which nothing has been sent yet.
    fn refuse(self, id: &Value, failure: &Failure) -> io::Result<()> {
        (self.send)(&(refusal(id, failure) + "\n"))
    }

    fn end(mut self) -> io::Result<()> {
        self.pending += "}\n";
        (self.send)(&self.pending)
    }
}

/// Returns the line that reports why request `id` failed.
pub(crate) fn refusal(id: &Value, failure: &Failure) -> String {
    let Failure { code, message } = failure;
    format!(r#"{{"id":{id},"error":{{"code":{},"message":{}}}}}"#, json!(code), json!(message))
}

/// The fields of an object; a duplicate field is an error.
struct Fields(Map<String, Value>);

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: de::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;

        impl<'de> Visitor<'de> for Object {
            type Value = Fields;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Fields, A::Error> {
                let mut fields = Map::new();
                while let Some((name, value)) = access.next_entry::<String, Value>()? {
                    if fields.contains_key(&name) {
                        return Err(de::Error::custom(format!("duplicate field `{name}`")));
                    }
                    fields.insert(name, value);
                }
                Ok(Fields(fields))
            }
        }

        deserializer.deserialize_map(Object)
    }
}

/// Takes the id, which identifies the answer: a string, or an integer that every program represents
/// exactly.
fn take_id(fields: &mut Map<String, Value>) -> Result<Value, Failure> {
    match fields.remove("id") {
        None => Ok(Value::Null),
        Some(id) if id.is_string() || id.is_i64() || id.is_u64() || id.is_null() => Ok(id),
        Some(_) => Err(Failure::new(Code::InvalidRequest, "field `id`: expected a string or a whole number")),
    }
}

fn command(mut fields: Map<String, Value>) -> Result<Command, Failure> {
    let invalid = |message: String| Failure::new(Code::InvalidRequest, message);
    let name = match fields.remove("command") {
        Some(Value::String(name)) => name,
        Some(_) => return Err(invalid("field `command`: expected a string".to_owned())),
        None => return Err(invalid("missing field `command`".to_owned())),
    };
    if !COMMANDS.contains(&name.as_str()) {
        let known = COMMANDS.join(", ");
        return Err(Failure::new(Code::UnknownCommand, format!("unknown command '{name}'; known commands: {known}")));
    }
    let prefix = format!("{name}.");
    let tagged = Value::Object(Map::from_iter([(name, Value::Object(fields))]));
    serde_path_to_error::deserialize(tagged).map_err(|error| {
        let path = error.path().to_string();
        let (field, what) = (path.strip_prefix(&prefix).unwrap_or_default(), error.inner().to_string());
        // Serde's message already names an unknown or missing field.
        invalid(if field.is_empty() || what.contains(&format!("`{field}`")) {
            what
        } else {
            format!("field `{field}`: {what}")
        })
    })
}

/// The result of a command.
enum Outcome {
    /// The complete result as JSON.
    Whole(String),
    /// The result lists the records of all disks.
    Disks,
    /// The result lists these records.
    Some(Vec<DiskRecord>),
    /// The result lists the figures of all disks after the server's.
    Figures { server: String },
}

fn perform(command: Command, disks: &dyn Manage, holding: &mut Holding<'_>) -> Result<Outcome, Failure> {
    let result = match command {
        Command::List {} => return Ok(Outcome::Disks),
        Command::Stat { name: None } => return Ok(Outcome::Figures { server: json(disks.server())? }),
        Command::Stat { name: Some(name) } => {
            let disk = disks.stat(&name)?;
            json(Stat { server: disks.server(), disks: vec![disk] })
        }
        Command::Add(disk) => {
            disk.check()?;
            json(disks.add(&disk)?)
        }
        Command::AddBase(base) => {
            base.check()?;
            json(disks.add_base(&base)?)
        }
        Command::Fork(fork) => {
            fork.check()?;
            return Ok(Outcome::Some(disks.fork(&fork)?));
        }
        Command::Snapshot { name, snapshot } => {
            check_snapshot(&name, &snapshot)?;
            json(disks.snapshot(&name, &snapshot)?)
        }
        Command::Rollback { name, snapshot, force } => json(disks.rollback(&name, &snapshot, force)?),
        Command::Changes { name, offset } => json(disks.changes(&name, offset)?),
        Command::Drop { name, snapshots, force } => json(disks.drop(&name, snapshots, force)?),
        Command::Resize(resize) => {
            resize.check()?;
            json(disks.resize(&resize)?)
        }
        Command::Rename { name, to } => {
            check_new_name(&name, &to)?;
            json(disks.rename(&name, &to)?)
        }
        Command::Reset { name, force } => json(disks.reset(&name, force)?),
        Command::Limit { name, limit_bytes } => {
            if name.is_some() {
                check_limit(limit_bytes)?;
            }
            json(disks.limit(name.as_deref(), limit_bytes)?)
        }
        Command::LimitConnections { connections: 0 } => {
            return Err(Failure::new(Code::InvalidRequest, "field `connections`: expected at least 1"));
        }
        Command::LimitConnections { connections } => json(disks.limit_connections(connections)?),
        Command::Quota(quota) => {
            quota.check()?;
            json(disks.quota(&quota)?)
        }
        Command::Compact { seconds } => {
            if seconds > MAX_COMPACT_SECONDS {
                let what = format!("field `seconds`: expected at most {MAX_COMPACT_SECONDS}, got {seconds}");
                return Err(Failure::new(Code::InvalidRequest, what));
            }
            json(disks.compact(Duration::from_secs(seconds))?)
        }
        Command::Freeze { name } => {
            if !(holding.may_hold)() {
                let what = "other clients already read the maximum number of frozen disks: retry later";
                return Err(Failure::new(Code::Busy, what));
            }
            let (instant, hold) = disks.freeze(&name)?;
            holding.held.push(hold);
            json(instant)
        }
        Command::FrozenRuns { export, offset_bytes } => json(disks.frozen_runs(&export, offset_bytes)?),
        Command::ServeDevice(device) => {
            check_name(&device.name)?;
            let missing = || Failure::new(Code::InvalidRequest, "the device's open file must come with the request");
            json(disks.serve_device(&device, holding.passed.take().ok_or_else(missing)?)?)
        }
        Command::DeviceFault { why } => json(disks.device_fault(why)),
        Command::EndDevice { device, pid } => json(disks.end_device(&device, pid)),
        Command::Spare { size_bytes } => {
            check_size(size_bytes)?;
            json(disks.spare(size_bytes)?)
        }
        Command::BindSpare(bind) => json(disks.bind_spare(&bind)?),
        Command::TakeOver { ahead } => {
            let missing =
                || Failure::new(Code::InvalidRequest, "a socket of the new server must come with the request");
            json(disks.take_over(holding.passed.take().ok_or_else(missing)?, ahead)?)
        }
        Command::Stop { force } => json(disks.stop(force)),
    };
    result.map(Outcome::Whole)
}

fn json(result: impl Serialize) -> Result<String, Failure> {
    serde_json::to_string(&result).map_err(|error| Failure::new(Code::Failed, error.to_string()))
}
