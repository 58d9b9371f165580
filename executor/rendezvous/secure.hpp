#pragma once
/// What the rendezvous needs to know friend from stranger: SHA-256 (FIPS 180-4), HMAC (RFC 2104), a comparison whose time does not
/// depend on where two values differ, and the job's token. No library: a page of code against one more dependency everywhere.

#include <array>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <string_view>

#include "executor/rendezvous/environment.hpp"

namespace moeplan {

using Digest = std::array<std::uint8_t, 32>;
/// 256 random bits that every rank of a job holds and nobody else.
using Token = Digest;

[[nodiscard]] Digest sha256(std::string_view data);
/// HMAC-SHA256 over the concatenation of `parts`, each preceded by its length, so that no two lists give the same bytes.
[[nodiscard]] Digest keyed_digest(std::string_view key, std::initializer_list<std::string_view> parts);
/// Plain HMAC-SHA256 of one message.
[[nodiscard]] Digest hmac_sha256(std::string_view key, std::string_view message);
[[nodiscard]] bool same(const Digest& a, std::string_view b);

[[nodiscard]] inline std::string_view bytes_of(const Digest& d) { return {reinterpret_cast<const char*>(d.data()), d.size()}; }

/// From the kernel's generator.
[[nodiscard]] Digest random_digest();

/// 64 hex digits from a regular file that belongs to this user (or root) and that no other user can read. Throws InputError; the
/// content is never part of a message.
[[nodiscard]] Token read_token_file(const std::filesystem::path& path);
/// 64 hex digits from an inherited descriptor (a pipe, say), which is closed.
[[nodiscard]] Token read_token_descriptor(int descriptor);
/// The token of this job: flag, then MOEPLAN_TOKEN_FILE, then MOEPLAN_TOKEN_FD. Throws InputError if there is none.
[[nodiscard]] Token find_token(const Environment& environment, const std::optional<std::filesystem::path>& file_flag = std::nullopt);
/// Where MOEPLAN_TOKEN_ONCE=1 (launch files set it), rank 0 removes the token file once all have joined.
void forget_token(const Environment& environment) noexcept;
/// Writes a new token to `path`, which must not exist, with mode 0600.
void write_token_file(const std::filesystem::path& path);

}  // namespace moeplan
