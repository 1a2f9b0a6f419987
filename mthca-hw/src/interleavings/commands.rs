//! Commands, their answers, and the end: `cmd::channel`.

extern crate std;
use super::{explore, machine};
use crate::cmd::table::Nop;
use crate::cmd::{Cause, Channel};
use crate::fake::{Machine, Reply};
use crate::health::End;
use core::time::Duration;
use core_ib::platform::{Caching, Platform};
use hca_abi::infinihost::cmd::{CmdStatus, Opcode};
use loom::thread;
use std::sync::Arc;

/// A channel of `slots` commands in flight, by events, with firmware that says nothing of its own.
fn channel(machine: &'static Machine, slots: usize) -> Channel<'static, Machine> {
    let dcs = machine.map(0, 0, 1 << 20, Caching::Uncached).unwrap();
    let channel = Channel::new(machine, dcs, slots, LIMIT).unwrap();
    channel.complete_by_events(true);
    machine.reply(Opcode::NOP, [Reply::Silence; 2]);
    channel
}

/// Of one look at the clock while a command is waited for.
const LIMIT: Duration = Duration::from_secs(1);
const ONE: CmdStatus = CmdStatus::RESOURCE_BUSY;
const TWO: CmdStatus = CmdStatus::REG_BOUND;

#[test]
fn loom_a_completion_is_the_answer_of_its_command_or_a_stray() {
    explore("late completion", Some(3), || {
        let machine = machine();
        let channel = Arc::new(channel(machine, 1));
        let interrupt = {
            let channel = channel.clone();
            thread::spawn(move || channel.complete(1, ONE, 0))
        };
        let cause = |result: Result<(), crate::CmdError>| result.unwrap_err().cause;
        let first = cause(channel.attempt(&Nop {}, LIMIT));
        let second = cause(channel.attempt(&Nop {}, LIMIT));
        assert_eq!(second, Cause::TimedOut, "the answer of the one before");
        interrupt.join().unwrap();
        match first {
            Cause::Refused(ONE) => assert_eq!(channel.strays(), 0),
            Cause::TimedOut => assert_eq!(channel.strays(), 1, "an answer is lost"),
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn loom_two_commands_in_flight_get_their_own_answers() {
    explore("two commands in flight", Some(2), || {
        let machine = machine();
        let channel = Arc::new(channel(machine, 2));
        let other = {
            let channel = channel.clone();
            thread::spawn(move || channel.attempt(&Nop {}, LIMIT).unwrap_err().cause)
        };
        let interrupt = {
            let channel = channel.clone();
            thread::spawn(move || {
                // The first tokens of the two slots.
                channel.complete(2, ONE, 0);
                channel.complete(3, TWO, 0);
            })
        };
        let one = channel.attempt(&Nop {}, LIMIT).unwrap_err().cause;
        let two = other.join().unwrap();
        interrupt.join().unwrap();
        let answered = [one, two].iter().filter(|c| **c != Cause::TimedOut).count() as u32;
        assert_eq!(answered + channel.strays(), 2);
        assert!(answered < 2 || one != two, "one answer for both");
    });
}

#[test]
fn loom_who_waits_for_a_command_is_told_of_the_end() {
    explore("end against a command", Some(3), || {
        let machine = machine();
        let channel = Arc::new(channel(machine, 1));
        let end = {
            let channel = channel.clone();
            thread::spawn(move || channel.fail(End::Gone))
        };
        let cause = channel.attempt(&Nop {}, LIMIT).unwrap_err().cause;
        assert!(matches!(cause, Cause::Gone | Cause::TimedOut), "{cause:?}");
        end.join().unwrap();
        let cause = channel.attempt(&Nop {}, LIMIT).unwrap_err().cause;
        assert_eq!(cause, Cause::Gone, "posted to a dead HCA");
    });
}
