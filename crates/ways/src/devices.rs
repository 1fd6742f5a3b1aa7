//! Disks as block devices that clients of the control socket create: devices of the kernel's ublk
//! driver, and NBD devices that are connected in advance.

use std::{
    fmt,
    fs::File,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use pagefold_executor::Export;
use pagefold_server::{BindSpare, Devices, Host, NewDevice, Transport, TransportError};
use pagefold_ublk::{Layout, Served, path};

use crate::spares::Spares;

/// Interval between two checks whether a server that ends still waits for requests.
const PAUSE: Duration = Duration::from_millis(50);

/// Serves the block devices that clients of the control socket have created, as `pagefold attach`
/// does.
#[derive(Default)]
pub struct BlockDevices(Option<List>);

impl fmt::Debug for BlockDevices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockDevices").finish_non_exhaustive()
    }
}

/// The devices that are served.
#[derive(Clone)]
struct List {
    host: Host,
    devices: Arc<Mutex<Vec<Device>>>,
    spares: Spares,
}

struct Device {
    number: u32,
    export: Arc<Export>,
    served: Served,
}

impl List {
    /// Returns why the server cannot be handed over.
    fn obstacle(&self) -> Option<String> {
        if let Some(device) = self.lock().first() {
            let path = path(device.number);
            return Some(format!(
                "it serves {}, which cannot be handed over; 'pagefold detach' ends that",
                path.display()
            ));
        }
        self.spares.exist().then(|| {
            "NBD devices are connected in advance ('pagefold attach --spare'), which cannot be handed over".to_owned()
        })
    }

    /// Returns the devices that are not stopped.
    fn lock(&self) -> MutexGuard<'_, Vec<Device>> {
        let mut devices = self.devices.lock().unwrap_or_else(PoisonError::into_inner);
        devices.retain(|device| !device.served.has_ended());
        devices
    }
}

impl Devices for List {
    fn serve(&self, export: &Arc<Export>, device: &NewDevice, file: OwnedFd) -> Result<(), String> {
        let mut devices = self.lock();
        if let Some(path) = ublk_of(&devices, export).or_else(|| self.spares.of(export)) {
            return Err(format!("the disk is already served as {}", path.display()));
        }
        let client = self.host.open(export).map_err(|error| error.to_string())?;
        let layout = Layout { queues: device.queues, depth: device.depth };
        let served = Served::start(File::from(file), layout, client);
        let served = served.map_err(|error| format!("the server cannot serve the device: {error}"))?;
        devices.push(Device { number: device.number, export: Arc::clone(export), served });
        Ok(())
    }

    fn of(&self, disk: &str) -> Option<PathBuf> {
        let devices = self.lock();
        // The name of a removed export may belong to another by now.
        let is_of = |device: &&Device| *device.export.name() == *disk && device.export.size_bytes().is_some();
        let path = devices.iter().find(is_of).map(|device| path(device.number));
        drop(devices);
        path.or_else(|| self.spares.of_name(disk))
    }

    fn end(&self, device: &Path) -> bool {
        let devices = self.lock();
        let served = devices.iter().find(|served| path(served.number) == device);
        served.inspect(|served| served.served.refuse_waiting()).is_some() || self.spares.end(&self.host, device)
    }

    fn spare(&self, size_bytes: u64) -> Result<String, String> {
        self.spares.add(&self.host, size_bytes)
    }

    fn bind(&self, export: &Arc<Export>, bind: &BindSpare) -> Result<(), String> {
        // The lock is held until the spare device is bound.
        let devices = self.lock();
        if let Some(path) = ublk_of(&devices, export) {
            return Err(format!("the disk is already served as {}", path.display()));
        }
        self.spares.bind(&self.host, export, bind)
    }
}

/// Returns the path of the device of the ublk driver that serves a disk.
fn ublk_of(devices: &[Device], disk: &Arc<Export>) -> Option<PathBuf> {
    devices.iter().find(|device| Arc::ptr_eq(&device.export, disk)).map(|device| path(device.number))
}

impl Transport for BlockDevices {
    fn start(&mut self, host: &Host) -> Result<(), TransportError> {
        let list = List { host: host.clone(), devices: Arc::default(), spares: Spares::default() };
        host.announce_devices(list.clone());
        let devices = list.clone();
        host.announce_obstacle(move || devices.obstacle());
        self.0 = Some(list);
        Ok(())
    }

    fn stop(&mut self) {
        let Some(list) = self.0.take() else { return };
        let devices = std::mem::take(&mut *list.lock());
        for device in devices {
            while !device.served.end(PAUSE) {
                if list.host.ending().is_forced() {
                    // Its threads are stuck in requests, and end with the process.
                    std::mem::forget(device.served);
                    break;
                }
            }
        }
    }
}
