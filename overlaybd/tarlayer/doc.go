// Package tarlayer reads and writes the tar envelope of a layer: a tar file whose one entry is the layer, so that a
// registry takes it for an ordinary uncompressed layer. The layer inside, usually a ZFile, keeps its random access.
//
//	w, err := tarlayer.NewWriter(f)     // room for the headers
//	io.Copy(w, layer)
//	err = w.Close()                     // fills up to whole blocks and ends the archive
//	err = w.WriteHeader(f)              // now the size is known, and the file is whole
//
//	p, err := tarlayer.Open(f, size)    // where the layer is
//	layer := io.NewSectionReader(f, p.Offset, p.Size)
//
// # What is written
//
// What the reference's tools write, byte for byte, for a layer of n bytes:
//
//	   0   512  pax header: name "overlaybd.pax", type x
//	 512   512  one pax record: "LENGTH size=n\n", zeroes behind
//	1024   512  ustar header: name "overlaybd.commit", mode 100644, owner root, size 0 (the pax record has it)
//	1536     n  the layer
//	            zeroes up to a multiple of 512
//	      1024  zeroes, the end of the archive
//
// Until WriteHeader the first 1536 bytes are zeroes, so that an unfinished file is not taken for a layer.
//
// # What is read
//
// Any archive whose first file is the layer: ustar, with or without pax headers of any length, and GNU. (The reference
// does not recognise GNU, and takes each pax header for one block.) Names, owners and types of the entries do not
// matter, nor does what follows the first file. Checksums of all headers are checked, and the layer must lie within the
// file; the tar format has no checksum over content.
package tarlayer
