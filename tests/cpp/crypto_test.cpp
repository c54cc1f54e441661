// HMAC-SHA256 and scrypt against the vectors of RFC 4231 and RFC 7914.
#include "base/crypto.h"

#include <string>
#include <string_view>
#include <thread>

#include <gtest/gtest.h>

#include "base/hex.h"

namespace q7x2 {
namespace {

std::span<const std::byte> bytes(std::string_view text) {
  return std::as_bytes(std::span(text));
}

std::string hex(const std::array<std::byte, 32>& code) {
  return to_hex(std::string(reinterpret_cast<const char*>(code.data()), code.size()));
}

// RFC 4231, test case 2.
constexpr std::string_view kKey = "Jefe";
constexpr std::string_view kText = "what do ya want for nothing?";
constexpr const char* kCode = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843";

TEST(Crypto, HmacOfTheRfc) {
  EXPECT_EQ(hex(hmac(bytes(kKey), {bytes(kText)})), kCode);
  // Test case 1.
  EXPECT_EQ(hex(hmac(bytes(std::string(20, '\x0b')), {bytes("Hi There")})),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
}

TEST(Crypto, PartsAreOneText) {
  EXPECT_EQ(hex(hmac(bytes(kKey), {bytes(kText.substr(0, 5)), bytes(""), bytes(kText.substr(5))})),
            kCode);
}

TEST(Crypto, EachThreadHasItsOwn) {
  std::string other;
  std::thread([&] { other = hex(hmac(bytes(kKey), {bytes(kText)})); }).join();
  EXPECT_EQ(other, kCode);
}

// By Python: hashlib.scrypt(b"pleaseletmein", salt=b"SodiumChloride", n=16384, r=8, p=1, dklen=32),
// which is the beginning of the third vector of RFC 7914.
TEST(Crypto, ScryptOfTheRfc) {
  EXPECT_EQ(hex(stretched("pleaseletmein", "SodiumChloride")),
            "7023bdcb3afd7348461c06cd81fd38ebfda8fbba904f8e3ea9b543f6545da1f2");
}

TEST(Crypto, Equality) {
  EXPECT_TRUE(equal_in_constant_time(bytes("abc"), bytes("abc")));
  EXPECT_FALSE(equal_in_constant_time(bytes("abc"), bytes("abd")));
  EXPECT_FALSE(equal_in_constant_time(bytes("abc"), bytes("ab")));
  EXPECT_TRUE(equal_in_constant_time({}, {}));
}

}  // namespace
}  // namespace q7x2
