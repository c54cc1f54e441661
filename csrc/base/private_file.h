// Files that only this user may read and write (0600), in folders of the same kind (0700).
//
// Other users may have created links with these names. A link in the last component of a path is
// never followed.
#pragma once

#include <filesystem>
#include <string_view>

namespace q7x2 {

/// Makes a folder and its missing parents. Existing folders do not change. Throws
/// std::filesystem::filesystem_error.
void make_private_folder(const std::filesystem::path& folder);

/// Writes a file that appears under its name when it is complete, and replaces a file of that name.
/// Throws std::system_error; then no new file is left.
void replace_private_file(const std::filesystem::path& file, std::string_view text);

}  // namespace q7x2
