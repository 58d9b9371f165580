# The executor's communication layer. moeplan_comm (ranks as threads, rendezvous, launch files, watchdog) needs nothing but
# moeplan_core; moeplan_nccl is built where NCCL's header and the CUDA run time are found.
moeplan_room(moeplan_comm GLOB executor/comm/*.cpp executor/rendezvous/*.cpp executor/launch/*.cpp LINK moeplan_core Threads::Threads)
