// Package firstboot is what an installed system does with what its install has left for it: it
// takes the first-boot data over, and tells the control plane that it is up. Images that `ironherd
// image build` makes run it as a unit.
//
//	find the first-boot area → keep the data → run it, if it is a program → report up → done
//
// The area is looked for on the disk that the root file system is on, or on those of its RAID, and
// nowhere else. A system without one was not installed by a control plane; it has nothing to do,
// which is no error. Nor has one whose disk has none of the partitions that the install has
// recorded which wrote the area: it came there by other means. That is asked until the first boot
// has begun, and /var/lib/ironherd/first-boot-begun remembers that it has, and with which install:
// since then the system may have changed its partitions, or have grown over a disk with the area of
// another install. That its own area is gone then is an error. What it says to the control plane is
// kept nowhere else, so that no copy of the system on other disks calls in its name.
//
// The host key that the install has brought becomes the system's: both files of it, and then sshd
// is told. A run that was cut short in the midst of that is made up for by the next one.
//
// The data is kept in /var/lib/ironherd/first-boot, for root alone. Where it begins with "#!", it
// is started once: not again if the machine goes down while it runs, because it may be what
// restarts the machine. That it failed, took longer than an hour or was cut short is logged, and
// does not hold back the report, because the system is up.
//
// The report is repeated until it is acknowledged, at intervals of up to a minute. A control plane
// that does not admit it may be getting a new database, so that is no reason to stop. Then
// /var/lib/ironherd/first-boot-done is written, and nothing is done ever again, unless the answer
// asks for more calls, or the system is installed as an image.
//
// An image may be read from the disk of an installed system, and then has all these files. So each
// boot looks at the area. The system forgets the install before and begins anew where no system has
// begun with this one, it is later than the one before, the disk has one of its partitions, and the
// root file system is on that disk alone. That no system has begun with it, the disk says: whoever
// begins writes that into the partition of the area, where it has one. That it is later, the tokens
// tell, both by the time of the control plane: a disk that is added to a volume group may be of an
// older install, whose image did no first boot. Of a Btrfs, all devices count that sysfs names;
// those that are missing it does not name. Where nothing says with which install the system has
// begun, or since when there is one, as with older versions, done is done. Why an install was not
// used is logged. No fault at that makes the run of a system fail that is done.
//
// Such a system is watched: the report is repeated at the interval of the last answer (a tenth
// earlier or later), on this boot and on every other one, as long as answers ask for that.
// /var/lib/ironherd/watched remembers it. Data and host key are never taken over again.
package firstboot
