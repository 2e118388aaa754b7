// Package disk is what local files are asked for beyond package os: names that last, and space that is given back.
package disk
