//! What the broker does once it is shut in: what the supervisor says, until it says no more.

use std::os::fd::OwnedFd;
use std::thread;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::parts::{Parts, Sockets};
use crate::channel::{Attach, Channel, ChannelError, ToBroker, ToSupervisor};
use crate::exit::Failure;

/// Serves sandboxes until the supervisor says `shutdown`, goes away, or SIGTERM comes; then closes the ledger.
pub(super) async fn serve(channel: &Channel, mut parts: Parts) -> Result<(), Failure> {
    let mut orders = listen(channel).map_err(Failure::internal)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(Failure::internal)?;
    let send = |message: &ToSupervisor| match channel.send(message, &[]) {
        // The next order will be that there is nobody to give any.
        Ok(()) | Err(ChannelError::Closed) => Ok(()),
        Err(error) => Err(Failure::internal(error)),
    };
    loop {
        tokio::select! {
            order = orders.recv() => match order {
                Some(Ok((ToBroker::Attach(attach), descriptors))) => {
                    let sandbox = attach.sandbox.id.clone();
                    let ledger_index = attach_sandbox(&mut parts, *attach, descriptors).await?;
                    send(&ToSupervisor::Ready { sandbox, ledger_index })?;
                }
                Some(Ok((ToBroker::Detach { sandbox, counters }, _))) => {
                    let summary = parts.detach(&sandbox, counters).await;
                    send(&ToSupervisor::Detached { sandbox, summary })?;
                }
                Some(Ok((ToBroker::Shutdown, _)) | Err(ChannelError::Closed)) | None => break,
                Some(Ok((ToBroker::Hello { .. } | ToBroker::Setup { .. }, _))) => {
                    return Err(Failure::internal(ChannelError::Unexpected { expected: "attach, detach or shutdown" }));
                }
                Some(Err(error)) => return Err(Failure::internal(error)),
            },
            _ = terminate.recv() => break,
        }
    }
    let ledger_failure = parts.close().await;
    send(&ToSupervisor::Stopped { ledger_failure })
}

async fn attach_sandbox(
    parts: &mut Parts,
    attach: Attach,
    descriptors: Vec<OwnedFd>,
) -> Result<u64, Failure> {
    let [tcp, dns_tcp, dns_udp]: [OwnedFd; 3] = descriptors.try_into().map_err(|_other_number| {
        Failure::internal(ChannelError::Unexpected {
            expected: "three sockets beside attach",
        })
    })?;
    let sockets = Sockets {
        tcp: tcp.into(),
        dns_tcp: dns_tcp.into(),
        dns_udp: dns_udp.into(),
    };
    parts.attach(attach, sockets).await
}

type Order = Result<(ToBroker, Vec<OwnedFd>), ChannelError>;

/// Reads the channel on a thread of its own, which ends with the channel or the process.
fn listen(channel: &Channel) -> std::io::Result<mpsc::UnboundedReceiver<Order>> {
    let channel = channel.try_clone()?;
    let (sender, orders) = mpsc::unbounded_channel();
    thread::Builder::new().name("channel".to_owned()).spawn(move || {
        loop {
            let order = channel.receive();
            let last = order.is_err();
            if sender.send(order).is_err() || last {
                return;
            }
        }
    })?;
    Ok(orders)
}
