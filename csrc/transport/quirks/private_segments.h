// PrivateSegments: shared memory that UCX makes is for this user only.
//
// UCX makes SysV segments that the user's group may read and write (0660), and old versions make
// files in /dev/shm with the modes that the umask leaves. This finds what UCX has just made and
// sets its mode to 0600. Peers are processes of the same user, so nothing is lost.
#pragma once

#include <set>

namespace q7x2 {

class PrivateSegments {
 public:
  /// Notes which segments there are.
  PrivateSegments();
  /// Other users cannot open what this process has made since. Throws Error(kTransport) where that
  /// cannot be had.
  void restrict_newer() const;

 private:
  const std::set<int> known_;  // numbers of SysV segments
};

/// The numbers of the SysV segments that this process has made. Throws Error(kTransport) where the
/// kernel does not tell.
std::set<int> created_segments();

}  // namespace q7x2
