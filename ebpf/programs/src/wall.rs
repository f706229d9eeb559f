//! Three programs: `wall_in` and `wall_out` on each sandbox's interface (TCX), `wall_steer` on the namespace (`sk_lookup`).

use aya_ebpf::bindings::{BPF_F_NO_PREALLOC, TC_ACT_OK, TC_ACT_SHOT};
use aya_ebpf::macros::{classifier, map, sk_lookup};
use aya_ebpf::maps::{HashMap, PerCpuHashMap, RingBuf, SockHash};
use aya_ebpf::programs::{SkLookupContext, TcContext};
use wallgate_wall_shared::{
    CounterRow, EventRow, HEADER_BYTES, Header, MARK, Outgoing, REASON_SLOTS, Reason, SandboxRow, SocketKey,
    Verdict, classify, describe, guard, steer,
};

/// ifindex → sandbox. The loader sets the sizes when it loads the object.
#[map(name = "sandboxes")]
static SANDBOXES: HashMap<u32, SandboxRow> = HashMap::with_max_entries(1024, 0);

/// ifindex → counters; row 0 counts for interfaces that have none.
#[map(name = "counters")]
static COUNTERS: PerCpuHashMap<u32, CounterRow> = PerCpuHashMap::with_max_entries(1025, BPF_F_NO_PREALLOC);

/// {ifindex, listener} → socket.
#[map(name = "sockets")]
static SOCKETS: SockHash<SocketKey> = SockHash::with_max_entries(3072, 0);

/// Events, sampled so that a flood cannot fill it: see [`is_told`].
#[map(name = "events")]
static EVENTS: RingBuf = RingBuf::with_byte_size(256 * 1024, 0);

/// Tells the 1st, 2nd, 4th, 8th … frame of a reason: at most 64 events per interface, reason and CPU, ever.
#[inline(always)]
const fn is_told(count: u64) -> bool {
    count & (count - 1) == 0
}

/// Adds one to a counter of this CPU and says how many it has now; 0 when there is no row at all.
#[inline(always)]
fn count(ifindex: u32, reason: Reason) -> u64 {
    let Some(row) = COUNTERS.get_ptr_mut(ifindex).or_else(|| COUNTERS.get_ptr_mut(0)) else {
        return 0;
    };
    // The mask tells the verifier what `REASON_SLOTS` promises.
    let index = reason.index() & (REASON_SLOTS - 1);
    // SAFETY: the kernel gave a pointer to this CPU's value, which stays valid until the program ends; a program is
    // not re-entered on one CPU at this hook, so nothing else refers to it now.
    let row = unsafe { &mut *row };
    let cell = &mut row.frames[index];
    *cell += 1;
    *cell
}

/// What the kernel's context says about a frame.
struct Frame {
    ifindex: u32,
    ingress_ifindex: u32,
    bytes: u32,
    mark: u32,
    vlan: bool,
}

impl Frame {
    #[inline(always)]
    fn of(ctx: &TcContext) -> Self {
        // SAFETY: the kernel passes a valid __sk_buff, and the verifier checks and rewrites each of these reads.
        let skb = unsafe { &*ctx.skb.skb };
        Self {
            ifindex: skb.ifindex,
            ingress_ifindex: skb.ingress_ifindex,
            bytes: skb.len,
            mark: skb.mark,
            vlan: skb.vlan_present != 0,
        }
    }
}

#[inline(always)]
fn row_of(ifindex: u32) -> Option<&'static SandboxRow> {
    let row = SANDBOXES.get_ptr(ifindex)?;
    // SAFETY: the kernel gave a pointer to a map value, which stays readable until the program ends: a removed value is
    // freed after a grace period. The loader only ever replaces whole values.
    Some(unsafe { &*row })
}

/// Reads the first bytes of the frame. The check of the length comes first, or the verifier sees a read of nothing.
#[inline(always)]
fn read(ctx: &TcContext, bytes: u32, header: &mut Header) -> bool {
    bytes >= 14 && ctx.load_bytes(0, header).is_ok()
}

/// Carries a verdict out: counts it, tells of it now and then, and says so to the kernel.
#[inline(always)]
fn finish(frame: &Frame, header: &Header, verdict: Verdict) -> i32 {
    let reason = verdict.reason();
    let seen = count(frame.ifindex, reason);
    // UDP that will be refused goes on only to be refused, so it is told like a drop.
    let refused = reason as u32 == Reason::RefuseUdp as u32 || reason as u32 == Reason::RefuseQuic as u32;
    let dropped = matches!(verdict, Verdict::Drop(_));
    if (dropped || refused) && is_told(seen) {
        tell(frame, header, reason, seen);
    }
    if dropped {
        TC_ACT_SHOT as i32
    } else {
        TC_ACT_OK as i32
    }
}

#[inline(always)]
fn tell(frame: &Frame, header: &Header, reason: Reason, seen: u64) {
    let Some(mut entry) = EVENTS.reserve::<EventRow>(0) else {
        count(frame.ifindex, Reason::EventLost);
        return;
    };
    let described = describe(header);
    entry.write(EventRow {
        count: seen,
        ifindex: frame.ifindex,
        reason: reason as u32,
        frame_bytes: frame.bytes,
        ethertype: described.ethertype,
        destination_port: described.destination_port,
        protocol: described.protocol as u16,
        source_mac: described.source_mac,
        source: described.source,
        mark: frame.mark,
        reserved: [0; 4],
    });
    entry.submit(0);
}

/// From the sandbox: filter, mark, count.
#[classifier]
pub(crate) fn wall_in(ctx: TcContext) -> i32 {
    let frame = Frame::of(&ctx);
    let mut header = [0; HEADER_BYTES];
    let verdict = if !read(&ctx, frame.bytes, &mut header) {
        Verdict::Drop(Reason::Truncated)
    } else {
        match row_of(frame.ifindex) {
            None => Verdict::Drop(Reason::UnknownInterface),
            // The kernel has already taken the tag out of the bytes.
            Some(_) if frame.vlan => Verdict::Drop(Reason::Vlan),
            Some(row) => {
                let verdict = classify(&header, frame.bytes, row);
                if let Verdict::Pass(_) = verdict {
                    ctx.set_mark(MARK | (row.slot & 0xffff));
                }
                verdict
            }
        }
    };
    finish(&frame, &header, verdict)
}

/// To the sandbox: only what its own sockets sent.
#[classifier]
pub(crate) fn wall_out(ctx: TcContext) -> i32 {
    let frame = Frame::of(&ctx);
    let mut header = [0; HEADER_BYTES];
    let verdict = if !read(&ctx, frame.bytes, &mut header) {
        Verdict::Drop(Reason::EgressForeign)
    } else {
        match row_of(frame.ifindex) {
            None => Verdict::Drop(Reason::EgressUnknownInterface),
            Some(row) => guard(
                &header,
                &Outgoing {
                    mark: frame.mark,
                    ingress_ifindex: frame.ingress_ifindex,
                    frame_bytes: frame.bytes,
                },
                row,
            ),
        }
    };
    finish(&frame, &header, verdict)
}

/// New flows, and each datagram: to the listener of the interface that it came in on, or nowhere.
#[sk_lookup]
pub(crate) fn wall_steer(ctx: SkLookupContext) -> u32 {
    const SK_DROP: u32 = 0;
    const SK_PASS: u32 = 1;
    // SAFETY: the kernel passes a valid bpf_sk_lookup, and the verifier checks and rewrites each of these reads.
    let lookup = unsafe { &*ctx.lookup };
    let (protocol, port, ifindex) = (lookup.protocol, lookup.local_port, lookup.ingress_ifindex);
    let Some(listener) = steer(protocol, port) else {
        count(ifindex, Reason::SteerRefused);
        return SK_DROP;
    };
    let key = SocketKey {
        ifindex,
        listener: listener as u32,
    };
    match SOCKETS.redirect_sk_lookup(&ctx, key, 0) {
        Ok(()) => {
            count(ifindex, listener.steered());
            SK_PASS
        }
        Err(_) => {
            count(ifindex, Reason::SteerNoListener);
            SK_DROP
        }
    }
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    // Unreachable: nothing here can panic, or the kernel would refuse the object, whose every path must end.
    loop {}
}

#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 4] = *b"GPL\0";
