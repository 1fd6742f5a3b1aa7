//! Changes that wait for room.
//!
//! A change that waits occupies no thread: it is set aside with its payload, and retried when there
//! may be room (`aside.rs`). The clients' other requests continue, including those that make room. A
//! change that cannot be set aside, because memory is short or too many of its client's wait, blocks
//! the thread that runs it.

use std::{
    sync::{Arc, atomic::Ordering::SeqCst},
    thread,
};

use pagefold_disk::{Waiting, Waits};

use crate::{
    aside::{Aside, RECHECK, RETRY_PAUSE, Retried, SetAside},
    change::{Attempt, Change, Keep, Payload, Storage},
    client::{Client, InProgress},
    completion::{Called, Completion, Failed},
    executor::Task,
    memory::Taken,
    scratch::Scratch,
};

/// Maximum number of changes that one client sets aside; each piece of a large request counts as
/// one. Linux's NBD client has this many requests in flight.
const MOST_ASIDE: usize = 128;

/// Bytes that such a change needs in addition to its payload, including its reply.
const ASIDE_BYTES: u64 = 512;

/// The thread that serves all clients does not retry longer changes.
const LONG_BYTES: u64 = 4 << 20;

/// A change that was set aside.
struct Stalled {
    change: Change<Payload>,
    completion: Box<dyn Completion>,
    /// The result, which waits for a thread that completes the change.
    result: Option<Result<(), Failed>>,
    /// What [`Waits::seen`] returned before the last attempt; `None` if the next one is due.
    seen: Option<u64>,
    waits: Arc<Waits>,
    waiting: Waiting,
    place: Place,
}

/// Counts a change that was set aside, and its memory.
struct Place {
    client: Arc<Client>,
    _taken: Taken,
}

impl Place {
    fn take(client: &Arc<Client>) -> Option<Self> {
        let taken = client.executor().memory().lend(ASIDE_BYTES)?;
        let more = |count| (count < MOST_ASIDE).then_some(count + 1);
        client.aside.fetch_update(SeqCst, SeqCst, more).ok()?;
        Some(Self { client: Arc::clone(client), _taken: taken })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.client.aside.fetch_sub(1, SeqCst);
    }
}

impl Client {
    /// Waits for room in this thread until the change is done, or `ends` returns true. The caller has
    /// a [`Waiting`](pagefold_disk::Waiting).
    ///
    /// # Errors
    /// See [`Failed`].
    pub fn outlast<B: AsRef<[u8]>>(
        &self,
        change: &mut Change<B>,
        waits: &Waits,
        ends: &dyn Fn() -> bool,
    ) -> Result<(), Failed> {
        loop {
            let seen = waits.seen();
            let attempt = change.attempt(self.device().as_deref(), Storage::Wait);
            if let Attempt::Done(result) = attempt {
                return result;
            }
            if ends() {
                return Err(Failed::Ended);
            }
            thread::sleep(RETRY_PAUSE);
            waits.sleep(seen, RECHECK);
        }
    }
}

/// Sets aside a change that found no room. If that is impossible, waits in this thread.
/// Returns the completion if it was called.
pub(crate) fn set_aside<B: Keep, C: Completion>(
    mut change: Change<B>,
    mut completion: C,
    waits: &Arc<Waits>,
) -> Called<C> {
    let waiting = waits.begin();
    let seen = waits.seen();
    // From here on, new room is signalled.
    let attempt = change.attempt(completion.client().device().as_deref(), Storage::Wait);
    let result = match attempt {
        Attempt::Done(result) => Some(result),
        // The request would end at the next retry.
        _ if completion.is_ending() => Some(Err(Failed::Ended)),
        _ => None,
    };
    if let Some(result) = result {
        drop((change, waiting));
        completion.done(result);
        return Called::Own(completion);
    }
    let kept = match Place::take(completion.client()) {
        Some(place) => change.keep(completion.client().share()).map(|change| (change, place)),
        None => Err(change),
    };
    match kept {
        Ok((change, place)) => {
            let (completion, waits) = (Box::new(completion), Arc::clone(waits));
            let stalled = Stalled { change, completion, result: None, seen: Some(seen), waits, waiting, place };
            put(stalled).map_or(Called::Not, Called::Boxed)
        }
        Err(mut change) => {
            let result = completion.client().outlast(&mut change, waits, &|| completion.is_ending());
            drop((change, waiting));
            completion.done(result);
            Called::Own(completion)
        }
    }
}

/// Hands a change to the room's thread for retries. Without such a thread, waits in this one, and
/// returns the completion, which was called.
fn put(stalled: Stalled) -> Option<Box<dyn Completion>> {
    let (seen, waits) = (stalled.seen, Arc::clone(&stalled.waits));
    let executor = Arc::clone(stalled.completion.client().executor());
    match SetAside::put(&executor.waiting, stalled, executor.memory()) {
        Ok(()) => {
            // The thread may have gone back to sleep before the change was there.
            if Some(waits.seen()) != seen {
                waits.signal();
            }
            None
        }
        Err(mut stalled) => {
            let Stalled { change, completion, result, .. } = &mut *stalled;
            *result = Some(completion.client().outlast(change, &waits, &|| completion.is_ending()));
            Some(stalled.finish())
        }
    }
}

impl Aside for Stalled {
    fn waits(&self) -> &Arc<Waits> {
        &self.waits
    }

    fn is_due(&self, seen: u64) -> bool {
        self.result.is_some() || self.seen != Some(seen)
    }

    fn retry(mut self: Box<Self>, seen: u64) -> Retried {
        if self.result.is_none() {
            let is_long = self.change.left_bytes() > LONG_BYTES;
            let attempt = if is_long {
                Attempt::Blocks
            } else {
                self.change.attempt(self.completion.client().device().as_deref(), Storage::DoNotWait)
            };
            match attempt {
                Attempt::Done(result) => self.set_result(result),
                _ if self.completion.is_ending() => self.set_result(Err(Failed::Ended)),
                Attempt::NoRoom(_) => {
                    self.seen = Some(seen);
                    return Retried::NoRoom(self);
                }
                Attempt::Blocks => self.seen = None,
            }
        }
        let client = self.completion.client();
        match client.reserve() {
            Some(thread) => thread.run_task(|in_progress| Box::new(Rest { stalled: *self, in_progress })),
            None if client.executor().has_threads() => return Retried::NoThread(self),
            // There is no memory for a single thread, so this one does everything.
            None => drop(self.run()),
        }
        Retried::Gone
    }
}

impl Stalled {
    /// Runs the rest, which may wait for storage. If there is no room again, sets it aside. Returns
    /// the completion if it was called.
    fn run(mut self) -> Option<Box<dyn Completion>> {
        while self.result.is_none() {
            self.seen = Some(self.waits.seen());
            let attempt = self.change.attempt(self.completion.client().device().as_deref(), Storage::Wait);
            match attempt {
                Attempt::Done(result) => self.set_result(result),
                Attempt::NoRoom(_) => return put(self),
                Attempt::Blocks => {}
            }
        }
        Some(self.finish())
    }

    /// Sets the result, and frees the payload.
    fn set_result(&mut self, result: Result<(), Failed>) {
        self.result = Some(result);
        self.change = Change::discard(0, 0);
    }

    /// Reports the result, and returns what was called.
    fn finish(self) -> Box<dyn Completion> {
        let Self { mut completion, result, change, waiting, place, .. } = self;
        drop((change, waiting, place));
        if let Some(result) = result {
            completion.done(result);
        }
        completion
    }
}

/// The rest of a change, for a thread of the executor.
struct Rest {
    stalled: Stalled,
    in_progress: InProgress,
}

impl Task for Rest {
    fn run(self: Box<Self>, _: &mut Scratch) {
        let Self { stalled, in_progress } = *self;
        let last = stalled.run();
        drop(in_progress);
        drop(last);
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{
            atomic::{AtomicBool, AtomicUsize},
            mpsc::{self, Receiver, Sender},
        },
        time::{Duration, Instant},
    };

    use pagefold_disk::{BlockDevice, Error, Extent, Room, Zeroes};

    use super::*;
    use crate::{ClientLimits, Executor, Export, Exports, Memory};

    /// Has no room while `is_full`, and must wait for storage while `blocks`.
    struct Fake {
        is_full: AtomicBool,
        blocks: AtomicBool,
        panics: AtomicBool,
        written: AtomicUsize,
        waits: Arc<Waits>,
    }

    impl BlockDevice for Fake {
        fn size_bytes(&self) -> u64 {
            1 << 20
        }

        fn waits(&self) -> Option<&Arc<Waits>> {
            Some(&self.waits)
        }

        fn read(&self, _: u64, _: &mut [u8]) -> Result<(), Error> {
            Ok(())
        }

        fn write(&self, _: u64, buf: &[u8]) -> Result<(), Error> {
            if self.is_full.load(SeqCst) {
                return Err(Error::NoSpace);
            }
            assert!(!self.panics.load(SeqCst), "a device with a bug");
            self.written.fetch_add(buf.len(), SeqCst);
            Ok(())
        }

        fn try_write(&self, offset: u64, buf: &[u8]) -> Result<usize, Error> {
            if self.blocks.load(SeqCst) { Ok(0) } else { self.write(offset, buf).map(|()| buf.len()) }
        }

        fn flush(&self) -> Result<(), Error> {
            Ok(())
        }

        fn discard(&self, _: u64, _: u64) -> Result<(), Error> {
            Ok(())
        }

        fn write_zeroes(&self, offset: u64, _: u64, _: Zeroes) -> Result<(), Error> {
            self.write(offset, &[])
        }

        fn extents(&self, _: u64, _: u64, _: &mut dyn FnMut(Extent) -> bool) -> Result<(), Error> {
            Ok(())
        }
    }

    /// Sends the result with a number; waits for `gate` first, if there is one.
    struct Reply {
        client: Arc<Client>,
        number: usize,
        sender: Sender<(usize, i32)>,
        gate: Option<Receiver<()>>,
    }

    impl Completion for Reply {
        fn client(&self) -> &Arc<Client> {
            &self.client
        }

        fn done(&mut self, result: Result<(), Failed>) {
            if let Some(gate) = &self.gate {
                let _ = gate.recv();
            }
            let _ = self.sender.send((self.number, result.map_or_else(|failed| failed.errno(), |()| 0)));
        }
    }

    impl Drop for Reply {
        fn drop(&mut self) {
            let _ = self.sender.send((self.number, -1));
        }
    }

    struct World {
        room: Arc<Room>,
        exports: Exports,
        executor: Arc<Executor>,
        devices: Vec<Arc<Fake>>,
        sender: Sender<(usize, i32)>,
        receiver: Receiver<(usize, i32)>,
    }

    const ESHUTDOWN: i32 = 108;
    const LIMITS: ClientLimits = ClientLimits { threads: 16, memory_bytes: 8 << 20 };

    impl World {
        /// Full devices, which share their room.
        fn new(devices: usize, most_threads: usize, memory_bytes: u64) -> Self {
            let (room, exports) = (Arc::<Room>::default(), Exports::new());
            let devices: Vec<_> = (0..devices)
                .map(|number| {
                    let device = Arc::new(Fake {
                        is_full: AtomicBool::new(true),
                        blocks: AtomicBool::new(false),
                        panics: AtomicBool::new(false),
                        written: AtomicUsize::new(0),
                        waits: Arc::new(Waits::new(&room)),
                    });
                    exports.add(Export::new(number.to_string(), Arc::clone(&device) as _)).expect("a name");
                    device
                })
                .collect();
            let executor = Arc::new(Executor::new(most_threads, Memory::new(memory_bytes, None)));
            let (sender, receiver) = mpsc::channel();
            Self { room, exports, executor, devices, sender, receiver }
        }

        fn client(&self, device: usize) -> Arc<Client> {
            let export = self.exports.get(&device.to_string()).expect("an export");
            Client::open(&self.executor, &export, LIMITS).expect("a client")
        }

        fn write(&self, client: &Arc<Client>, number: usize, gate: Option<Receiver<()>>) {
            let reply = Reply { client: Arc::clone(client), number, sender: self.sender.clone(), gate };
            Change::write(0, &[7; 9000][..]).start(reply);
        }

        /// Waits until this many changes wait without a thread of the executor.
        fn waits_for(&self, count: usize) {
            let waiting = || self.devices.iter().map(|device| device.waits.count()).sum::<usize>();
            wait_for(|| waiting() == count && self.executor.is_idle());
        }

        fn make_room(&self) {
            self.devices.iter().for_each(|device| device.is_full.store(false, SeqCst));
            self.room.signal();
        }

        /// Returns the next results, by their numbers.
        fn results(&self, count: usize) -> Vec<(usize, i32)> {
            let next = |_| loop {
                match self.receiver.recv_timeout(Duration::from_secs(60)).expect("a result") {
                    (_, -1) => {}
                    result => break result,
                }
            };
            let mut results: Vec<_> = (0..count).map(next).collect();
            results.sort_unstable();
            results
        }

        fn ends(&self) {
            wait_for(|| self.executor.waiting.rooms() == 0);
            self.waits_for(0);
        }
    }

    fn wait_for(is_so: impl Fn() -> bool) {
        let start = Instant::now();
        while !is_so() {
            assert!(start.elapsed() < Duration::from_secs(60), "it does not come");
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn one_thread_waits_for_the_changes_of_all_clients() {
        let world = World::new(3, 4, u64::MAX);
        let clients: Vec<_> = (0..12).map(|number| world.client(number % 3)).collect();
        (0..60).for_each(|number| world.write(&clients[number % 12], number, None));
        world.waits_for(60);
        assert_eq!(world.executor.waiting.rooms(), 1);
        world.make_room();
        assert_eq!(world.results(60), (0..60).map(|number| (number, 0)).collect::<Vec<_>>());
        assert_eq!(world.devices.iter().map(|device| device.written.load(SeqCst)).sum::<usize>(), 60 * 9000);
        world.ends();
    }

    /// A peer that does not read its replies keeps only its own changes.
    #[test]
    fn a_client_that_takes_no_result_keeps_no_other_waiting() {
        let world = World::new(1, 4, u64::MAX);
        let (slow, quick) = (world.client(0), world.client(0));
        let (open, gate) = mpsc::channel();
        world.write(&slow, 0, Some(gate));
        (1..20).for_each(|number| world.write(&quick, number, None));
        world.waits_for(20);
        world.make_room();
        assert_eq!(world.results(19), (1..20).map(|number| (number, 0)).collect::<Vec<_>>());
        drop(open);
        assert_eq!(world.results(1), [(0, 0)]);
        world.ends();
    }

    #[test]
    fn a_change_that_finds_room_may_then_wait_for_storage() {
        let world = World::new(1, 4, u64::MAX);
        let client = world.client(0);
        world.write(&client, 0, None);
        world.waits_for(1);
        world.devices[0].blocks.store(true, SeqCst);
        // A thread of the executor tries the request, and finds no room again.
        world.room.signal();
        world.waits_for(1);
        world.make_room();
        assert_eq!(world.results(1), [(0, 0)]);
        world.ends();
    }

    #[test]
    fn changes_end_with_their_client_and_their_export() {
        // Both with and without memory to set the changes aside.
        for memory_bytes in [u64::MAX, 0] {
            let world = World::new(2, 4, memory_bytes);
            let clients = [world.client(0), world.client(1), world.client(1)];
            thread::scope(|scope| {
                for (number, client) in clients.iter().enumerate() {
                    let world = &world;
                    let reply = Reply { client: Arc::clone(client), number, sender: world.sender.clone(), gate: None };
                    scope.spawn(move || Change::write(0, &[7; 9000][..]).start(reply));
                }
                world.waits_for(3);
                world.exports.remove("0").expect("an export");
                assert_eq!(world.results(1), [(0, ESHUTDOWN)]);
                clients[1].end();
                assert_eq!(world.results(1), [(1, ESHUTDOWN)]);
                world.make_room();
                assert_eq!(world.results(1), [(2, 0)]);
            });
            world.ends();
            drop(clients);
        }
    }

    /// A kernel that ends a device may still have much to write, and these writes must not wait one
    /// by one.
    #[test]
    fn a_client_that_has_ended_waits_for_no_room() {
        let world = World::new(1, 4, u64::MAX);
        let (client, other) = (world.client(0), world.client(0));
        (0..10).for_each(|number| world.write(&client, number, None));
        world.write(&other, 100, None);
        world.waits_for(11);
        client.end();
        assert_eq!(world.results(10), (0..10).map(|number| (number, ESHUTDOWN)).collect::<Vec<_>>());
        (10..20).for_each(|number| world.write(&client, number, None));
        assert_eq!(world.results(10), (10..20).map(|number| (number, ESHUTDOWN)).collect::<Vec<_>>());
        assert_eq!((client.aside.load(SeqCst), other.aside.load(SeqCst)), (0, 1));
        world.make_room();
        world.write(&client, 20, None);
        assert_eq!(world.results(2), [(20, 0), (100, 0)], "what finds room is done");
        world.ends();
    }

    #[test]
    fn a_device_that_panics_takes_only_its_own_changes() {
        let world = World::new(2, 4, u64::MAX);
        let clients = [world.client(0), world.client(1)];
        (0..2).for_each(|number| world.write(&clients[number], number, None));
        world.waits_for(2);
        world.devices[0].panics.store(true, SeqCst);
        world.make_room();
        assert_eq!(world.results(1), [(1, 0)]);
        world.ends();
    }

    /// Changes that cannot be set aside block only threads of their own client.
    #[test]
    fn a_client_sets_a_bounded_number_aside() {
        let world = World::new(1, 4, u64::MAX);
        let client = world.client(0);
        (0..MOST_ASIDE).for_each(|number| world.write(&client, number, None));
        world.waits_for(MOST_ASIDE);
        thread::scope(|scope| {
            let (world, client) = (&world, &client);
            let reply =
                Reply { client: Arc::clone(client), number: MOST_ASIDE, sender: world.sender.clone(), gate: None };
            scope.spawn(move || Change::write(0, &[7; 9000][..]).finish(reply));
            wait_for(|| world.devices[0].waits.count() == MOST_ASIDE + 1);
            assert_eq!(client.aside.load(SeqCst), MOST_ASIDE);
            world.make_room();
        });
        assert_eq!(world.results(MOST_ASIDE + 1), (0..=MOST_ASIDE).map(|number| (number, 0)).collect::<Vec<_>>());
        world.ends();
    }
}
