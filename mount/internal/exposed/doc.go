// Package exposed is what every exposer does with a device, however clients reach it: requests of any offset and length
// become whole sectors, and a drive that is closed waits for its clients or cuts them off.
package exposed
