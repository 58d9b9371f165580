#include "executor/rendezvous/join.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>

#include "executor/comm/communicator.hpp"
#include "executor/rendezvous/wire.hpp"
#include "tests/executor/rendezvous/loopback.hpp"

namespace moeplan {
namespace {

const Token kToken = sha256("the job's token");

void expect_in(const std::string& part, const std::string& text) { EXPECT_NE(text.find(part), std::string::npos) << text; }

/// What each rank of a job got: a Joined, or the error's text.
struct Outcome {
  std::optional<Joined> joined;
  std::string error;
  CommFault fault = CommFault::library;
};
Outcome try_join(const ProcessPlace& place, const Token& token, const JoinOptions& options) {
  Outcome out;
  try {
    out.joined = join(place, token, "host" + std::to_string(place.rank), place.rank == 0 ? std::string("id\0\xff", 4) : "", options);
  } catch (const CommError& e) {
    out.error = e.what();
    out.fault = e.fault();
  } catch (const std::exception& e) {
    out.error = e.what();
  }
  return out;
}

/// Ranks `ranks` of a world of `world` as threads, while `meanwhile` runs.
std::vector<Outcome> run(int world, std::vector<int> ranks, const JoinOptions& options, const std::function<void(int)>& meanwhile = {}, const std::vector<Token>& tokens = {}) {
  const int port = free_port();
  std::vector<Outcome> out(ranks.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < ranks.size(); ++i)
    threads.emplace_back([&, i] { out[i] = try_join(place_of(ranks[i], world, port), tokens.empty() ? kToken : tokens[i], options); });
  if (meanwhile) meanwhile(port);
  for (auto& t : threads) t.join();
  return out;
}

void connect_when_open(int port, int& fd) {
  while ((fd = connect_loopback(port)) < 0) std::this_thread::sleep_for(Duration{1});
}

TEST(Join, all_ranks_get_the_payload_and_the_hosts) {
  const auto all = run(5, {0, 1, 2, 3, 4}, {.limit = Duration{20000}});
  for (const auto& o : all) {
    ASSERT_TRUE(o.joined) << o.error;
    EXPECT_EQ(o.joined->payload, std::string("id\0\xff", 4));
    EXPECT_EQ(o.joined->hosts, (std::vector<std::string>{"host0", "host1", "host2", "host3", "host4"}));
  }
}

TEST(Join, a_single_process_opens_nothing) {
  const Joined j = join(place_of(0, 1, 0), Token{}, "here", "id");
  EXPECT_EQ(j.payload, "id");
  EXPECT_EQ(j.hosts, (std::vector<std::string>{"here"}));
}

TEST(Join, channels_carry_messages_both_ways_in_order) {
  auto all = run(2, {0, 1}, {.limit = Duration{20000}});
  ASSERT_TRUE(all[0].joined && all[1].joined);
  Channel &a = all[0].joined->channels[1], &b = all[1].joined->channels[0];
  const std::string large(200000, 'x');
  std::vector<std::string> got;
  a.send("one");
  a.send(large);
  b.send("back");
  for (int i = 0; i < 1000 && got.size() < 2; ++i) {
    a.flush();
    for (auto& m : b.receive()) got.push_back(m);
    std::this_thread::sleep_for(Duration{1});
  }
  EXPECT_EQ(got, (std::vector<std::string>{"one", large}));
  EXPECT_EQ(a.receive(), (std::vector<std::string>{"back"}));
}

TEST(Join, the_port_is_closed_once_all_have_joined) {
  int used = 0;
  const auto all = run(2, {0, 1}, {.limit = Duration{20000}}, [&](int port) { used = port; });
  ASSERT_TRUE(all[0].joined);
  EXPECT_EQ(connect_loopback(used), -1);
}

TEST(Join, a_missing_rank_is_named_on_all_ranks) {
  const auto all = run(4, {0, 2}, {.limit = Duration{300}});
  EXPECT_EQ(all[0].fault, CommFault::timeout);
  expect_in("ranks 1, 3 did not come within 0.3 s", all[0].error);
  expect_in("ranks 1, 3 did not come within 0.3 s", all[1].error);
}

TEST(Join, without_rank_0_the_others_say_where_they_looked) {
  const auto all = run(2, {1}, {.limit = Duration{200}});
  EXPECT_EQ(all[0].fault, CommFault::timeout);
  expect_in("did not answer within 0.2 s: cannot connect", all[0].error);
}

TEST(Join, another_token_does_not_join) {
  const auto all = run(2, {0, 1}, {.limit = Duration{400}}, {}, {kToken, sha256("another token")});
  expect_in("rank 1 did not come", all[0].error);
  expect_in("do all ranks have the same token?", all[1].error);
}

TEST(Join, two_processes_with_one_rank_are_named_by_host) {
  const auto all = run(3, {0, 1, 1}, {.limit = Duration{20000}});
  EXPECT_EQ(all[0].fault, CommFault::mismatch);
  expect_in("two processes claim rank 1: one on \"host1\", one on \"host1\"", all[0].error);
}

TEST(Join, different_world_sizes_are_refused) {
  const int port = free_port();
  Outcome other;
  std::thread guest([&] { other = try_join(place_of(1, 3, port), kToken, {.limit = Duration{20000}}); });
  const Outcome host = try_join(place_of(0, 2, port), kToken, {.limit = Duration{20000}});
  guest.join();
  expect_in("rank 1 on \"host1\" says there are 3 ranks, rank 0 says 2", host.error);
  expect_in("says there are 3 ranks", other.error);
}

TEST(Join, ten_thousand_junk_connections_have_no_effect) {
  std::atomic<int> tried{0};
  const auto all = run(3, {0, 1}, {.limit = Duration{120000}, .handshake_limit = Duration{2000}}, [&](int port) {
    int fd = -1;
    connect_when_open(port, fd);
    ::close(fd);
    std::mt19937 random(7);
    std::vector<int> idle;
    for (int i = 0; i < 10000; ++i) {
      if ((fd = connect_loopback(port)) < 0) continue;
      ++tried;
      std::string junk(random() % 600, '\0');
      for (auto& c : junk) c = static_cast<char>(random());
      if (i % 3 == 0) junk = "GET / HTTP/1.1\r\n\r\n";
      if (i % 5 == 0) junk = std::string(wire::kMagic) + junk;
      (void)!::send(fd, junk.data(), junk.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (i % 100 == 0) idle.push_back(fd);   // neither closed nor continued
      else ::close(fd);
    }
    const Outcome late = try_join(place_of(2, 3, port), kToken, {.limit = Duration{60000}});
    EXPECT_TRUE(late.joined) << late.error;
    for (const int f : idle) ::close(f);
  });
  EXPECT_EQ(tried, 10000);
  EXPECT_TRUE(all[0].joined) << all[0].error;
  EXPECT_TRUE(all[1].joined) << all[1].error;
}

TEST(Join, a_recorded_claim_is_worth_nothing_on_another_connection) {
  const Digest first = random_digest(), second = random_digest();
  const std::string recorded = wire::claim(kToken, bytes_of(first), random_digest(), 1, 2, "host1");
  EXPECT_TRUE(wire::read_claim(kToken, bytes_of(first), recorded));
  EXPECT_FALSE(wire::read_claim(kToken, bytes_of(second), recorded));
}

TEST(Join, no_byte_of_a_claim_can_be_changed) {
  const Digest nonce = random_digest();
  const std::string good = wire::claim(kToken, bytes_of(nonce), random_digest(), 1, 2, "host1");
  ASSERT_EQ(good.size(), wire::kClaim);
  for (std::size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 1);
    EXPECT_FALSE(wire::read_claim(kToken, bytes_of(nonce), bad)) << i;
  }
}

TEST(Join, a_rank_that_leaves_before_all_have_joined_is_named) {
  const int port = free_port();
  std::thread leaver([&] {
    int fd = -1;
    connect_when_open(port, fd);
    std::string greeting(wire::kGreeting, '\0');
    ASSERT_EQ(::recv(fd, greeting.data(), greeting.size(), MSG_WAITALL), static_cast<ssize_t>(wire::kGreeting));
    const std::string claim = wire::claim(kToken, *wire::read_greeting(greeting), random_digest(), 2, 3, "gpu07");
    ASSERT_EQ(::send(fd, claim.data(), claim.size(), 0), static_cast<ssize_t>(claim.size()));
    std::string welcome(wire::kWelcome, '\0');
    ASSERT_EQ(::recv(fd, welcome.data(), welcome.size(), MSG_WAITALL), static_cast<ssize_t>(wire::kWelcome));
    ::close(fd);
  });
  const Outcome host = try_join(place_of(0, 3, port), kToken, {.limit = Duration{20000}});
  leaver.join();
  EXPECT_EQ(host.fault, CommFault::peer_lost);
  expect_in("rank 2 on gpu07 left before all had joined", host.error);
}

/// Two ends of a socket pair with one key.
struct Pair {
  Pair() {
    int ends[2];
    (void)::socketpair(AF_UNIX, SOCK_STREAM, 0, ends);
    a = Channel(Socket(ends[0]), sha256("key"), true);
    raw = ends[1];
  }
  Channel a;
  int raw = -1;
};

TEST(Channel, a_changed_byte_closes_it) {
  Pair p;
  p.a.send("hello");
  std::string bytes(4 + 5 + 32, '\0');
  ASSERT_EQ(::recv(p.raw, bytes.data(), bytes.size(), MSG_WAITALL), static_cast<ssize_t>(bytes.size()));
  EXPECT_EQ(bytes.find("hello"), std::string::npos);   // encrypted
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    int ends[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    Channel b(Socket(ends[0]), sha256("key"), false);
    std::string bad = bytes;
    bad[i] = static_cast<char>(bad[i] ^ 0x40);
    (void)!::send(ends[1], bad.data(), bad.size(), 0);
    ::close(ends[1]);
    EXPECT_TRUE(b.receive().empty()) << i;
    EXPECT_FALSE(b.open());
  }
  ::close(p.raw);
}

TEST(Channel, a_message_sent_again_closes_it) {
  Pair p;
  p.a.send("once");
  std::string bytes(4 + 4 + 32, '\0');
  ASSERT_EQ(::recv(p.raw, bytes.data(), bytes.size(), MSG_WAITALL), static_cast<ssize_t>(bytes.size()));
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  Channel b(Socket(ends[0]), sha256("key"), false);
  for (int i = 0; i < 2; ++i) (void)!::send(ends[1], bytes.data(), bytes.size(), 0);
  EXPECT_EQ(b.receive(), (std::vector<std::string>{"once"}));
  EXPECT_FALSE(b.open());
  ::close(ends[1]);
  ::close(p.raw);
}

TEST(Channel, a_length_beyond_the_cap_closes_it_without_reading_on) {
  Pair p;
  const std::string length = "\xff\xff\xff\x7f";
  (void)!::send(p.raw, length.data(), length.size(), 0);
  EXPECT_TRUE(p.a.receive().empty());
  EXPECT_FALSE(p.a.open());
  ::close(p.raw);
}

TEST(Channel, refuses_to_send_what_the_other_side_would_refuse) {
  Pair p;
  EXPECT_THROW(p.a.send(std::string(Channel::kLongestMessage + 1, 'x')), std::length_error);
  ::close(p.raw);
}

}  // namespace
}  // namespace moeplan
