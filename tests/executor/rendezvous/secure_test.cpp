#include "executor/rendezvous/secure.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "core/error.hpp"

namespace moeplan {
namespace {

std::string hex(const Digest& d) {
  std::string out;
  for (const auto b : d) out += fmt::format("{:02x}", b);
  return out;
}

class TokenFile : public ::testing::Test {
 protected:
  void SetUp() override { path_ = std::filesystem::path(::testing::TempDir()) / ("token_" + std::to_string(getpid())); }
  void TearDown() override { std::filesystem::remove(path_); }
  void write(const std::string& text, mode_t mode) {
    std::ofstream(path_) << text;
    ::chmod(path_.c_str(), mode);
  }
  std::string refusal() const {
    try {
      (void)read_token_file(path_);
    } catch (const InputError& e) {
      return e.what();
    }
    return {};
  }
  std::filesystem::path path_;
  const std::string good_ = std::string(32, 'a') + std::string(32, '7');
};

TEST(Sha256, agrees_with_the_published_vectors) {
  EXPECT_EQ(hex(sha256("")), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hex(sha256("abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hex(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")), "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(hex(sha256(std::string(1000000, 'a'))), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(HmacSha256, agrees_with_rfc_4231) {
  EXPECT_EQ(hex(hmac_sha256(std::string(20, '\x0b'), "Hi There")), "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(hex(hmac_sha256("Jefe", "what do ya want for nothing?")), "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(hex(hmac_sha256(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First")), "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST(KeyedDigest, parts_cannot_be_shifted_into_each_other) { EXPECT_NE(keyed_digest("k", {"ab", "c"}), keyed_digest("k", {"a", "bc"})); }

TEST(Same, compares_whole_digests) {
  const Digest a = sha256("a");
  Digest b = a;
  EXPECT_TRUE(same(a, bytes_of(b)));
  b[31] ^= 1;
  EXPECT_FALSE(same(a, bytes_of(b)));
  EXPECT_FALSE(same(a, bytes_of(a).substr(1)));
}

TEST(RandomDigest, does_not_repeat) { EXPECT_NE(random_digest(), random_digest()); }

TEST_F(TokenFile, of_mode_0600_is_read) {
  write(good_ + "\n", 0600);
  EXPECT_EQ(hex(read_token_file(path_)), good_);
}

TEST_F(TokenFile, written_by_us_is_read_and_never_overwritten) {
  write_token_file(path_);
  EXPECT_EQ(refusal(), "");
  EXPECT_THROW(write_token_file(path_), InputError);
}

TEST_F(TokenFile, that_others_can_read_is_refused) {
  write(good_, 0644);
  EXPECT_NE(refusal().find("has mode 0644: others can reach it; chmod 600"), std::string::npos) << refusal();
}

TEST_F(TokenFile, without_a_token_is_refused_and_not_shown) {
  write("secret-but-short", 0600);
  EXPECT_NE(refusal().find("holds no token (16 characters)"), std::string::npos) << refusal();
  EXPECT_EQ(refusal().find("secret-but-short"), std::string::npos);
  write(std::string(64, 'g'), 0600);
  EXPECT_NE(refusal(), "");
}

TEST_F(TokenFile, that_is_a_pipe_or_directory_is_refused_at_once) {
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  EXPECT_NE(refusal().find("is no regular file"), std::string::npos);
}

TEST_F(TokenFile, by_descriptor) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  ASSERT_EQ(::write(ends[1], good_.data(), good_.size()), 64);
  ::close(ends[1]);
  EXPECT_EQ(hex(find_token({{"MOEPLAN_TOKEN_FD", std::to_string(ends[0])}})), good_);
}

TEST_F(TokenFile, comes_from_flag_then_variable) {
  write(good_, 0600);
  EXPECT_EQ(hex(find_token({{"MOEPLAN_TOKEN_FILE", "/none"}}, path_)), good_);
  EXPECT_EQ(hex(find_token({{"MOEPLAN_TOKEN_FILE", path_.string()}})), good_);
  EXPECT_THROW((void)find_token({}), InputError);
  EXPECT_THROW((void)find_token({{"MOEPLAN_TOKEN_FD", "1x"}}), InputError);
}

TEST_F(TokenFile, is_removed_after_the_start_only_where_it_was_made_for_one_job) {
  write(good_, 0600);
  forget_token({{"MOEPLAN_TOKEN_FILE", path_.string()}});
  EXPECT_TRUE(std::filesystem::exists(path_));
  forget_token({{"MOEPLAN_TOKEN_FILE", path_.string()}, {"MOEPLAN_TOKEN_ONCE", "1"}});
  EXPECT_FALSE(std::filesystem::exists(path_));
}

}  // namespace
}  // namespace moeplan
