/* copy: file trees, by descriptor, without following anything out of them.
 *
 * The source may have been made by somebody hostile: no name of it is ever more than one step, no
 * link is followed, depth costs 24 bytes of memory a level, and a directory that moves meanwhile is
 * an error. Nobody else may be able to write to the target. All return 0 or -errno. */
#pragma once

/* Copies what the file `from` holds to `to`, which is empty: by sharing its blocks where the file
 * system can, else byte by byte, but holes stay holes. */
int copy_data(int from, int to);

/* Copies what is in the directory `from` into `to`, which is empty, and the attributes of `from`
 * itself: modes, owners, times, user.* attributes, access lists, links (hard ones too), pipes,
 * sockets. Device nodes are left out, but for an overlay's white-outs. -ESTALE: it changed
 * meanwhile. */
int copy_tree(int from, int to);
