// PrivateSegments: restricts the shared memory that UCX makes to this user.
//
// UCX makes SysV segments that the user's group may read and write (0660), and old versions make
// files in /dev/shm with the modes that the umask leaves. This class finds what UCX has just made
// and sets its mode to 0600. Peers are processes of the same user, so they can still open it.
#pragma once

#include <set>

namespace q7x2 {

class PrivateSegments {
 public:
  /// Records the segments that exist now.
  PrivateSegments();
  /// Makes everything that this process has created since inaccessible to other users. Throws
  /// Error(kTransport) if that is impossible.
  void restrict_newer() const;

 private:
  const std::set<int> known_;  // numbers of SysV segments
};

/// The numbers of the SysV segments that this process has made. Throws Error(kTransport) if the
/// kernel does not tell.
std::set<int> created_segments();

}  // namespace q7x2
