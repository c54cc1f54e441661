// Files that only this user may read and write (0600), in folders of the same kind (0700).
//
// Other users may have put links where a file shall be. None is followed in the last part of a
// path.
#pragma once

#include <filesystem>
#include <string_view>

namespace q7x2 {

/// Makes a folder and those above it that are missing. One that is there stays as it is. Throws
/// std::filesystem::filesystem_error.
void make_private_folder(const std::filesystem::path& folder);

/// Writes a file that appears under its name when it is complete, and replaces what has that name.
/// Throws std::system_error; then nothing is left behind.
void replace_private_file(const std::filesystem::path& file, std::string_view text);

}  // namespace q7x2
