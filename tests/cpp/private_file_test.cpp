// Files of this user alone: their modes, and links that are not followed.
#include "base/private_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

#include <gtest/gtest.h>

namespace q7x2 {
namespace {

namespace fs = std::filesystem;

class PrivateFile : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "q7x2-test-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
    umask_ = ::umask(0);
  }
  void TearDown() override {
    ::umask(umask_);
    fs::remove_all(folder_);
  }

  static unsigned mode_of(const fs::path& path) {
    struct stat status {};
    return ::lstat(path.c_str(), &status) == 0 ? status.st_mode & 07777 : 0;
  }
  static std::string text_of(const fs::path& path) {
    std::ifstream stream(path);
    return {std::istreambuf_iterator<char>(stream), {}};
  }

  fs::path folder_;
  mode_t umask_ = 0;
};

TEST_F(PrivateFile, IsForThisUserAlone) {
  make_private_folder(folder_ / "a" / "b");
  make_private_folder(folder_ / "a" / "b");
  EXPECT_EQ(mode_of(folder_ / "a"), 0700U);
  EXPECT_EQ(mode_of(folder_ / "a" / "b"), 0700U);
  const fs::path file = folder_ / "a" / "b" / "file";
  replace_private_file(file, "1");
  replace_private_file(file, "2");
  EXPECT_EQ(text_of(file), "2");
  EXPECT_EQ(mode_of(file), 0600U);
  EXPECT_EQ(std::distance(fs::directory_iterator(file.parent_path()), {}), 1);
}

TEST_F(PrivateFile, FollowsNoLink) {
  std::ofstream(folder_ / "precious") << "precious";
  const fs::path file = folder_ / "file";
  fs::create_symlink(folder_ / "precious", file);
  fs::create_symlink(folder_ / "precious", file.string() + ".part" + std::to_string(::getpid()));
  replace_private_file(file, "ours");
  EXPECT_EQ(text_of(folder_ / "precious"), "precious");
  EXPECT_FALSE(fs::is_symlink(file));
  EXPECT_EQ(text_of(file), "ours");
}

TEST_F(PrivateFile, LeavesNothingBehindIfItCannotBeWritten) {
  fs::create_directory(folder_ / "file");
  EXPECT_THROW(replace_private_file(folder_ / "file", "text"), std::system_error);
  EXPECT_THROW(replace_private_file(folder_ / "missing" / "file", "text"), std::system_error);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1);
  std::ofstream(folder_ / "taken") << "";
  EXPECT_THROW(make_private_folder(folder_ / "taken" / "a"), std::system_error);
}

}  // namespace
}  // namespace q7x2
