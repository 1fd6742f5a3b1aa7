//! Random requests, several at a time on several queues, compared with a plain array.

use pagefold_disk::BlockDevice;
use pagefold_vhost_user::client::{Layout, Operation, Options};
use proptest::{collection::vec, prelude::*};

use crate::world::{MIB, World, ram_disk};

/// Requests that are in flight together each use a different part of the disk.
const STRIPE_BYTES: u64 = 64 << 10;
const STRIPES: usize = 16;

#[derive(Clone, Debug)]
enum Action {
    Read,
    Write(u8),
    Discard,
    WriteZeroes(bool),
    Flush,
}

#[derive(Clone, Debug)]
struct Step {
    action: Action,
    queue: usize,
    /// Sectors within the stripe.
    start: u64,
    count: u64,
    indirect: bool,
    segments: Vec<u64>,
}

fn step(queues: usize) -> impl Strategy<Value = Step> {
    let action = prop_oneof![
        4 => Just(Action::Read),
        4 => any::<u8>().prop_map(Action::Write),
        1 => Just(Action::Discard),
        1 => any::<bool>().prop_map(Action::WriteZeroes),
        1 => Just(Action::Flush),
    ];
    let sectors = STRIPE_BYTES / 512;
    let range = (0..sectors).prop_flat_map(move |start| (Just(start), 1..=sectors - start));
    let segments = vec(prop_oneof![Just(1), Just(511), Just(512), 1..9000_u64], 0..6);
    (action, 0..queues, range, any::<bool>(), segments).prop_map(
        |(action, queue, (start, count), indirect, segments)| Step { action, queue, start, count, indirect, segments },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn a_disk_does_what_an_array_does(
        steps in vec(step(3), 1..120),
        event_idx in any::<bool>(),
        together in 1..STRIPES,
        take_overs in vec(any::<bool>(), 4),
    ) {
        let disk = ram_disk(MIB);
        let mut world = World::new(disk.clone());
        let mut client = world.client(Options { queues: 3, event_idx, most_bytes: STRIPE_BYTES, ..Options::default() });
        let mut model = vec![0; MIB as usize];
        for (number, batch) in steps.chunks(together).enumerate() {
            let mut asked = Vec::new();
            for (stripe, step) in batch.iter().enumerate() {
                let offset = stripe as u64 * STRIPE_BYTES + step.start * 512;
                let len = step.count * 512;
                let range = offset as usize..(offset + len) as usize;
                let bytes = match step.action {
                    Action::Write(seed) => range.clone().map(|at| seed ^ (at >> 3) as u8).collect(),
                    _ => vec![0; range.len()],
                };
                let unmap = matches!(step.action, Action::WriteZeroes(true));
                let ranges = [(offset / 512, step.count as u32, u32::from(unmap))];
                let operation = match step.action {
                    Action::Read => Operation::Read(offset, len),
                    Action::Write(_) => Operation::Write(offset, &bytes),
                    Action::Discard => Operation::Discard(&ranges),
                    Action::WriteZeroes(_) => Operation::WriteZeroes(&ranges),
                    Action::Flush => Operation::Flush,
                };
                let layout = Layout { indirect: step.indirect, segments: &step.segments };
                let queue = &mut client.queues[step.queue];
                let slot = queue.submit(operation, layout).expect("memory").expect("room for all");
                queue.kick().expect("a kick");
                asked.push((step.queue, slot, range.clone(), matches!(step.action, Action::Read)));
                if !matches!(step.action, Action::Read | Action::Flush) {
                    model[range].copy_from_slice(&bytes);
                }
            }
            if take_overs.get(number) == Some(&true) {
                world.take_over();
            }
            for _ in 0..asked.len() {
                let number = (0..3).find(|number| client.queues[*number].in_flight() > 0).expect("an answer to come");
                let queue = &mut client.queues[number];
                let answer = queue.wait().expect("an answer");
                prop_assert_eq!(answer.status, 0);
                let at = asked.iter().position(|(queue, slot, ..)| (*queue, *slot) == (number, answer.slot));
                let (_, slot, range, is_read) = asked.swap_remove(at.expect("it was asked"));
                if is_read {
                    let data = client.queues[number].data(slot, range.len() as u64).expect("data");
                    prop_assert!(data == model[range], "other data was read");
                }
            }
        }
        let mut all = vec![0; MIB as usize];
        disk.read(0, &mut all).expect("a read");
        prop_assert!(all == model, "the disk has other data");
    }
}
