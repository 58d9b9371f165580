/// Loaded into one rank of a job (LD_PRELOAD) to make it fail at a named place, from outside: the program is the shipped one and knows
/// nothing of it. A breakpoint is set on the first byte of a function of the program; when the rank comes there in the wanted phase for
/// the n-th time, the shim does to the process what a failing machine would. x86-64 ELF only.
///
///   MOEPLAN_FAULT='phase=save;function=13write_durableE;hit=2;do=kill'
///
/// MOEPLAN_FAULT_STRUCK: a file that is made then.
///
/// `function`: part of a symbol's mangled name. `phase`: what the rank last told `Progress::set_phase`; "start" before that.
/// `do`: kill, stop (signals to itself) | exit (code 0) | hang (this thread only; the others go on) | slow:MS (sleeps so long, then goes on, here and each time after) | throw (the function throws std::runtime_error instead of running) |
/// memory (its next operator new throws std::bad_alloc) | return:N (the function gives back N) | nan:REGISTER[:BYTES] (where the argument
/// points, on the host or the device; *REGISTER: where what it points to points).

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <ucontext.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>

namespace {

struct Breakpoint {
  unsigned char* at = nullptr;
  unsigned char was = 0;
};

std::string wanted_phase, function_part, action;
int wanted_hit = 1, hits = 0, given_back = 0;
Breakpoint set_phase, target;
char phase[64] = "start";
Breakpoint* stepping = nullptr;
thread_local bool no_memory = false;

[[noreturn]] void broken(const char* why) {
  std::fprintf(stderr, "fault shim: %s\n", why);
  ::_exit(99);
}

void throw_instead() { throw std::runtime_error("injected failure"); }
void exit_instead() { std::exit(0); }
void hang_instead() {
  for (;;) ::pause();
}
int return_instead() { return given_back; }

greg_t* register_named(ucontext_t& context, const std::string& name) {
  auto& r = context.uc_mcontext.gregs;
  if (name == "rdi") return &r[REG_RDI];
  if (name == "rsi") return &r[REG_RSI];
  if (name == "rdx") return &r[REG_RDX];
  if (name == "rcx") return &r[REG_RCX];
  broken("no such register");
}

/// NaN as bf16 and as float. On the device once what has been queued is done, so that nothing writes over it.
void spoil(void* at, std::size_t bytes) {
  if (void* cuda = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD)) {
    const auto attribute = reinterpret_cast<int (*)(void*, int, std::uintptr_t)>(::dlsym(cuda, "cuPointerGetAttribute"));
    const auto settle = reinterpret_cast<int (*)()>(::dlsym(cuda, "cuCtxSynchronize"));
    const auto fill = reinterpret_cast<int (*)(std::uintptr_t, unsigned, std::size_t)>(::dlsym(cuda, "cuMemsetD32_v2"));
    unsigned kind = 0;   // CU_POINTER_ATTRIBUTE_MEMORY_TYPE = 2, CU_MEMORYTYPE_DEVICE = 2
    if (attribute(&kind, 2, reinterpret_cast<std::uintptr_t>(at)) == 0 && kind == 2) {
      settle();
      if (fill(reinterpret_cast<std::uintptr_t>(at), 0x7fc07fc0u, bytes / 4) != 0 || settle() != 0) broken("the device's memory cannot be written");
      return;
    }
  }
  const unsigned char pattern[] = {0xc0, 0x7f};
  for (std::size_t i = 0; i < bytes; ++i) static_cast<unsigned char*>(at)[i] = pattern[i % 2];
}

void act(ucontext_t& context) {
  if (const char* file = std::getenv("MOEPLAN_FAULT_STRUCK")) ::close(::open(file, O_WRONLY | O_CREAT | O_CLOEXEC, 0644));   // its time says when
  auto& r = context.uc_mcontext.gregs;
  const auto go_to = [&](auto* instead) { r[REG_RIP] = reinterpret_cast<greg_t>(instead); };
  if (action == "kill") ::kill(::getpid(), SIGKILL);
  else if (action == "stop") ::kill(::getpid(), SIGSTOP);
  else if (action == "exit") go_to(&exit_instead);
  else if (action == "hang") go_to(&hang_instead);
  else if (action == "throw") go_to(&throw_instead);
  else if (action == "memory") no_memory = true;
  else if (action.rfind("return:", 0) == 0) {
    given_back = std::atoi(action.c_str() + 7);
    go_to(&return_instead);
  } else if (action.rfind("nan:", 0) == 0) {
    std::string where = action.substr(4);
    std::size_t bytes = 16;
    if (const auto colon = where.find(':'); colon != std::string::npos) bytes = std::strtoul(where.c_str() + colon + 1, nullptr, 10), where.resize(colon);
    const bool through = where[0] == '*';
    void* at = reinterpret_cast<void*>(*register_named(context, through ? where.substr(1) : where));
    if (through) at = *static_cast<void**>(at);
    spoil(at, bytes);
  } else broken("no such action");
}

/// A breakpoint was met, or the instruction under one has run.
void trapped(int, siginfo_t*, void* raw) {
  auto& context = *static_cast<ucontext_t*>(raw);
  auto& r = context.uc_mcontext.gregs;
  constexpr greg_t kStep = 0x100;   // the processor's trap flag
  if (stepping) {
    *stepping->at = 0xcc;
    stepping = nullptr;
    r[REG_EFL] &= ~kStep;
    return;
  }
  auto* const at = reinterpret_cast<unsigned char*>(r[REG_RIP] - 1);
  Breakpoint* const met = at == target.at ? &target : at == set_phase.at ? &set_phase : nullptr;
  if (!met) broken("a trap of somebody else's");
  *met->at = met->was;
  r[REG_RIP] = reinterpret_cast<greg_t>(at);
  if (met == &set_phase) {   // (this, std::string by reference)
    const auto* text = reinterpret_cast<const std::string*>(r[REG_RSI]);
    std::snprintf(phase, sizeof phase, "%s", text->c_str());
  } else if (wanted_phase == phase && ++hits >= wanted_hit && action.rfind("slow:", 0) == 0) {
    ::usleep(1000 * static_cast<unsigned>(std::atoi(action.c_str() + 5)));
  } else if (wanted_phase == phase && hits == wanted_hit) {
    act(context);
    return;   // once
  }
  stepping = met;
  r[REG_EFL] |= kStep;
}

void plant(Breakpoint& b, std::uintptr_t address) {
  b.at = reinterpret_cast<unsigned char*>(address);
  const auto page = address & ~std::uintptr_t{4095};
  if (::mprotect(reinterpret_cast<void*>(page), 8192, PROT_READ | PROT_WRITE | PROT_EXEC) != 0) broken("the program's text cannot be written");
  b.was = *b.at;
  *b.at = 0xcc;
}

/// Address of the function whose name has `part` in it; 0 if there is none.
std::uintptr_t find(const unsigned char* file, std::uintptr_t base, const char* part) {
  const auto& header = *reinterpret_cast<const Elf64_Ehdr*>(file);
  const auto* sections = reinterpret_cast<const Elf64_Shdr*>(file + header.e_shoff);
  for (int s = 0; s < header.e_shnum; ++s) {
    if (sections[s].sh_type != SHT_SYMTAB) continue;
    const auto* symbols = reinterpret_cast<const Elf64_Sym*>(file + sections[s].sh_offset);
    const auto* names = reinterpret_cast<const char*>(file + sections[sections[s].sh_link].sh_offset);
    for (std::size_t i = 0; i < sections[s].sh_size / sizeof(Elf64_Sym); ++i) {
      const char* name = names + symbols[i].st_name;
      const bool ours = std::strncmp(name, "_ZN7moeplan", 11) == 0 ? std::strstr(name, part) != nullptr : std::strcmp(name, part) == 0;
      if (ours && ELF64_ST_TYPE(symbols[i].st_info) == STT_FUNC && symbols[i].st_size > 0 && !std::strstr(name, ".cold") && !std::strstr(name, "UlvE") && !std::strstr(name, "4Walk"))
        return base + symbols[i].st_value;
    }
  }
  return 0;
}

std::string field(const std::string& all, const char* name) {
  const auto at = all.find(std::string(name) + "=");
  if (at == std::string::npos) broken("MOEPLAN_FAULT lacks a field");
  const auto begin = at + std::strlen(name) + 1, end = all.find(';', begin);
  return all.substr(begin, end == std::string::npos ? end : end - begin);
}

void begin() {
  const char* said = std::getenv("MOEPLAN_FAULT");
  if (!said) return;
  const std::string all = said;
  wanted_phase = field(all, "phase"), function_part = field(all, "function"), action = field(all, "do");
  wanted_hit = std::atoi(field(all, "hit").c_str());
  const int fd = ::open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
  struct stat info {};
  if (fd < 0 || ::fstat(fd, &info) != 0) broken("the program cannot be read");
  const auto* file = static_cast<const unsigned char*>(::mmap(nullptr, static_cast<std::size_t>(info.st_size), PROT_READ, MAP_PRIVATE, fd, 0));
  ::close(fd);
  std::uintptr_t base = 0;
  ::dl_iterate_phdr([](dl_phdr_info* i, std::size_t, void* out) { return *static_cast<std::uintptr_t*>(out) = i->dlpi_addr, 1; }, &base);   // the program comes first
  const std::uintptr_t phases = find(file, base, "8Progress9set_phaseE"), at = find(file, base, function_part.c_str());
  if (!phases || !at) broken(("no function like " + function_part + " in the program").c_str());
  struct sigaction handler {};
  handler.sa_sigaction = trapped;
  handler.sa_flags = SA_SIGINFO;
  ::sigaction(SIGTRAP, &handler, nullptr);
  plant(set_phase, phases);
  plant(target, at);
}

const bool begun = (begin(), true);   // behind the variables that it fills

}  // namespace

void* operator new(std::size_t bytes) {
  if (no_memory) {
    no_memory = false;
    throw std::bad_alloc();
  }
  if (void* p = std::malloc(bytes ? bytes : 1)) return p;
  throw std::bad_alloc();
}
