# SPDX-License-Identifier: Apache-2.0
# plugin.sh - the nova-hpc plug-in of devstack
#
# Installs the project beside Nova, derives the node's settings from its
# inventory and merges them into Nova's and Placement's configuration.

# The log of a job shows the commands of the phases, not how the functions are read.
_XTRACE_NOVA_HPC=$(set +o | grep xtrace)
set +o xtrace

source $NOVA_HPC_DIR/devstack/described/functions

# Options that may be given several times: what others have set stays before ours.
NOVA_HPC_SEVERAL="alias available_filters device_role device_spec"

# Merge the options of an include file into a service's configuration.
#
# What other plug-ins have set is added to: lines of an option that may be given
# several times go below theirs, and a limit never falls. Lists come whole from
# nova-hpc configure, which has read theirs. iniset_multiline splits values at
# blanks, which the JSON of PCI options contains, so lines are added one by one.
#
#   nova_hpc_merge INCLUDE_FILE CONF_FILE
function nova_hpc_merge {
    local include=$1 conf=$2
    local section option line before
    local -a lines=() options=() there=()
    local i
    for section in $(iniget_sections $include); do
        # Only the assignments of this section, comments and blanks left out.
        mapfile -t lines < <(sed -n -e "/^\[$section\]/,/^\[/ { /^[a-z_]* *=/ p; }" $include)
        if ! grep -q "^\[$section\]" $conf; then
            printf '\n[%s]\n' $section | sudo tee -a $conf > /dev/null
        fi
        mapfile -t options < <(printf '%s\n' "${lines[@]}" | sed -e 's/ *=.*//' | uniq)
        for option in "${options[@]}"; do
            mapfile -t there < <(sed -n -e "/^\[$section\]/,/^\[/ { s/^$option[ \t]*=[ \t]*//p; }" $conf)
            if [[ " $NOVA_HPC_SEVERAL " != *" $option "* ]]; then
                before=${there[*]: -1}
                there=()
                if [[ $option == max_* && $before =~ ^-?[0-9]+$ ]]; then
                    line=$(iniget $include $section $option)
                    # A negative limit is none.
                    if (( before < 0 || before > line )); then
                        continue
                    fi
                fi
            fi
            for line in "${lines[@]}"; do
                if [[ ${line%% =*} == "$option" ]]; then
                    line=${line#*= }
                    for before in "${there[@]}"; do
                        if [[ $before == "$line" ]]; then
                            continue 2
                        fi
                    done
                    there+=("$line")
                fi
            done
            inidelete $conf $section $option
            # iniadd_literal puts a line right below the section's head.
            for (( i = ${#there[@]} - 1; i >= 0; i-- )); do
                iniadd_literal $conf $section $option "${there[i]}"
            done
        done
    done
}

# The command, by devstack's own place of Python programs: clean.sh has no path to it.
function nova_hpc_command {
    local command
    command=$(get_python_exec_prefix)/nova-hpc
    if [[ ! -x $command ]]; then
        command=nova-hpc
    fi
    echo $command
}

function nova_hpc_install {
    # No index has the wheels, so each comes after those that it requires. setup_develop reads
    # setup.cfg, which only the root has; without the file it ends stack.sh.
    pip_install -e $NOVA_HPC_DIR/nova_hpc_common
    setup_develop $NOVA_HPC_DIR
    pip_install -e $NOVA_HPC_DIR/nova_hpc_guest -e $NOVA_HPC_DIR/nova_hpc_client \
        -e $NOVA_HPC_DIR/nova_hpc_tools
    if is_service_enabled n-cpu; then
        # No package of ours has a file in Nova's folder of drivers.
        $(nova_hpc_command) install-shim
    fi
    if [[ -n "$NOVA_HPC_DESCRIBED_HOST" ]]; then
        nova_hpc_describe_host
    fi
    if [[ -n "$NOVA_HPC_SIMULATED_FABRIC" ]]; then
        nova_hpc_install_fabric
    fi
}

# Merge the include file of a part, where the node needs one.
#
#   nova_hpc_merge_part PART CONF_FILE
function nova_hpc_merge_part {
    local include=$NOVA_HPC_CONF_DIR/nova-hpc-$1.conf
    if [[ -e $include ]]; then
        nova_hpc_merge $include $2
    fi
}

function nova_hpc_configure {
    local -a more parts=(--part common) sets=()
    local option
    # devstack writes Neutron's lines into the same nova.conf in the background.
    async_wait configure_neutron_nova
    # Quotes in the setting group words, as they would on a command line.
    eval "more=($NOVA_HPC_CONFIGURE_ARGS)"
    sudo install -d -o $STACK_USER $NOVA_HPC_CONF_DIR
    # Devstack begins with a new nova.conf, so nothing of the last time counts.
    sudo rm -f $NOVA_HPC_CONF_DIR/nova-hpc-*.conf $NOVA_HPC_CONF_DIR/nova-hpc-undo.json \
        $NOVA_HPC_CONF_DIR/node.yaml
    cat >$NOVA_HPC_CONF_DIR/node.yaml <<EOF
schema: nova-hpc/node
version: 1
$NOVA_HPC_DECLARATION
EOF
    # A machine without devices gets the files of those services alone that it runs.
    if is_service_enabled n-api n-sch n-cond; then
        parts+=(--part controller)
    fi
    if is_service_enabled n-cpu; then
        parts+=(--part compute)
    fi
    if is_service_enabled placement-api; then
        parts+=(--part placement)
    fi
    # A set of CPUs that local.conf has stays; without any, no server gets dedicated CPUs.
    for option in cpu_shared_set cpu_dedicated_set; do
        if [[ -n "$(iniget $NOVA_CONF compute $option)" ]]; then
            sets=(--keep cpu_shared_set --keep cpu_dedicated_set)
        fi
    done
    # Filters, weighers and aliases of nova.conf are added to. nova_hpc_merge minds
    # the limits, and a machine without devices may be the controller of others.
    $(nova_hpc_command) configure --write $NOVA_HPC_CONF_DIR --config-file $NOVA_CONF "${parts[@]}" \
        --declaration $NOVA_HPC_CONF_DIR/node.yaml \
        --enabled-filters "$(iniget $NOVA_CONF filter_scheduler enabled_filters),$NOVA_FILTERS" \
        "${sets[@]}" \
        --replace max_placement_results --replace max_allocation_candidates \
        --replace device_spec "${more[@]}"
    nova_hpc_merge_part common $NOVA_CONF
    if is_service_enabled n-api n-sch n-cond; then
        nova_hpc_merge_part controller $NOVA_CONF
    fi
    if is_service_enabled n-cpu; then
        # nova-compute is not root and resets devices through oslo.privsep.
        sudo install -D -m 644 $NOVA_HPC_DIR/etc/rootwrap.d/nova-hpc.filters \
            $(dirname $NOVA_CONF)/rootwrap.d/nova-hpc.filters
        # nova-cpu.conf is made from this file when nova-compute starts.
        nova_hpc_merge_part compute $NOVA_CONF
    fi
    if is_service_enabled placement-api; then
        nova_hpc_merge_part placement $PLACEMENT_CONF
    fi
}

# Add a word to a list of a file, unless it is there.
#
#   nova_hpc_add_to_list FILE SECTION OPTION WORD
function nova_hpc_add_to_list {
    local words
    words=$(iniget $1 $2 $3)
    if [[ ",$words," != *,$4,* ]]; then
        iniset $1 $2 $3 "${words:+$words,}$4"
    fi
}

# The mechanism driver, its tables, and the agent beside the subnet manager.
function nova_hpc_configure_partitions {
    if is_service_enabled q-svc neutron-api; then
        nova_hpc_add_to_list /$Q_PLUGIN_CONF_FILE ml2 mechanism_drivers hpc_partitions
        nova_hpc_add_to_list /$Q_PLUGIN_CONF_FILE ml2 type_drivers vlan
        nova_hpc_add_to_list /$Q_PLUGIN_CONF_FILE ml2_type_vlan network_vlan_ranges \
            $NOVA_HPC_VLAN_RANGES
        iniset $NEUTRON_CONF hpc_partitions physical_networks $NOVA_HPC_PHYSICAL_NETWORKS
        iniset $NEUTRON_CONF hpc_partitions port_inventory $NOVA_HPC_PORT_INVENTORY
        $(get_python_exec_prefix)/neutron-db-manage --config-file $NEUTRON_CONF \
            --config-file /$Q_PLUGIN_CONF_FILE --subproject nova-hpc upgrade heads
    fi
    if is_service_enabled hpc-fabric-agent; then
        iniset $NOVA_HPC_FABRIC_AGENT_CONF hpc_fabric_agent fabric $NOVA_HPC_FABRIC
    fi
}

function nova_hpc_start_fabric_agent {
    local environment=""
    if [[ -n "$NOVA_HPC_SIMULATED_FABRIC" ]]; then
        environment="/usr/bin/env $(cat $NOVA_HPC_FABRIC_TREE/environment) "
    fi
    run_process hpc-fabric-agent "$environment$(get_python_exec_prefix)/nova-hpc-fabric-agent \
        --config-file $NEUTRON_CONF --config-file $NOVA_HPC_FABRIC_AGENT_CONF"
}

# The number of an alias's devices that the largest flavor of the family has; 0: there is none.
function nova_hpc_count_gpus {
    openstack flavor list --all -f value -c Name |
        sed -n "s/^$NOVA_HPC_TEST_FAMILY\.gpu\([0-9][0-9]*\)$/\1/p" | sort -n | tail -n 1
}

# Let tempest use the family, and leave out what a server with devices cannot do.
function nova_hpc_configure_tempest {
    local smallest=$1 other=$2 most=$3
    local feature
    iniset $TEMPEST_CONFIG compute flavor_ref $(nova_hpc_flavor_id $smallest)
    iniset $TEMPEST_CONFIG compute flavor_ref_alt $(nova_hpc_flavor_id $other)
    # Nova moves no device from host to host while its guest runs, and saves none of its state.
    for feature in live_migration suspend; do
        iniset $TEMPEST_CONFIG compute-feature-enabled $feature False
    done
    # A server that is resized holds the devices of both sizes until it is confirmed.
    if [[ $smallest == "$other" ]]; then
        iniset $TEMPEST_CONFIG compute-feature-enabled resize False
    fi
    if [[ -n "$NOVA_HPC_DESCRIBED_HOST" ]]; then
        # No guest runs on a described host: there is none to log in to.
        iniset $TEMPEST_CONFIG validation run_validation False
    fi
    iniset $TEMPEST_CONFIG nova_hpc flavor $smallest
    iniset $TEMPEST_CONFIG nova_hpc largest_flavor $NOVA_HPC_TEST_FAMILY.gpu$most
}

function nova_hpc_flavor_id {
    openstack flavor show $1 -f value -c id
}

# The hardware of this node, in the variables that whitebox-tempest-plugin writes for its tests.
# They are set before the phase in which it does: a job of Zuul enables plug-ins by name.
function nova_hpc_tell_whitebox {
    local node cpus topology="" sizes=""
    for node in /sys/devices/system/node/node[0-9]*; do
        cpus=$(python3 - $(cat $node/cpulist) <<'END'
import sys
ranges = [part.split("-") for part in sys.argv[1].split(",")]
print(",".join(str(cpu) for part in ranges for cpu in range(int(part[0]), int(part[-1]) + 1)))
END
)
        topology+="${topology:+, }${node##*/node}: [$cpus]"
    done
    for node in /sys/kernel/mm/hugepages/hugepages-*kB; do
        if [[ -e $node && $(cat $node/nr_hugepages) -gt 0 ]]; then
            node=${node##*hugepages-}
            sizes+="${sizes:+,}${node%kB}"
        fi
    done
    WHITEBOX_CPU_TOPOLOGY=${WHITEBOX_CPU_TOPOLOGY:-$topology}
    WHITEBOX_CONFIGURED_HUGEPAGES=$sizes
}

# Flavors for one, two, four and all GPUs of the nodes, and two of them for tempest.
function nova_hpc_test_config {
    local -x OS_CLOUD=devstack-admin
    local status=0 gpus other
    # The controller makes them: other nodes have no database of Nova's API.
    if [[ -z "$NOVA_HPC_TEST_FAMILY" ]] || ! is_service_enabled n-api; then
        return
    fi
    $(nova_hpc_command) flavor create --family $NOVA_HPC_TEST_FAMILY \
        --disk $NOVA_HPC_TEST_DISK --yes $NOVA_HPC_TEST_ARGS || status=$?
    # The status of a cloud in which no host offers a device.
    if [[ $status -eq 3 && $NOVA_HPC_TEST_REQUIRED != True ]]; then
        echo "No host offers a device: tempest keeps its flavors"
        return
    fi
    if [[ $status -ne 0 ]]; then
        die $LINENO "nova-hpc flavor create has failed ($status): no flavor of the family" \
            "$NOVA_HPC_TEST_FAMILY for tempest"
    fi
    if is_service_enabled tempest; then
        gpus=$(nova_hpc_count_gpus)
        other=$NOVA_HPC_TEST_FAMILY.gpu1
        if [[ $gpus -ge 2 ]]; then
            other=$NOVA_HPC_TEST_FAMILY.gpu2
        fi
        nova_hpc_configure_tempest $NOVA_HPC_TEST_FAMILY.gpu1 $other $gpus
    fi
}

function nova_hpc_clean {
    if type -t $(nova_hpc_command) > /dev/null; then
        $(nova_hpc_command) install-shim --remove
    fi
    if [[ -n "$NOVA_HPC_DESCRIBED_HOST" ]]; then
        nova_hpc_clean_described_host
    fi
    if [[ -n "$NOVA_HPC_SIMULATED_FABRIC" ]]; then
        rm -rf $NOVA_HPC_FABRIC_TREE
    fi
    sudo rm -rf $NOVA_HPC_CONF_DIR $(dirname $NOVA_CONF)/rootwrap.d/nova-hpc.filters
}

$_XTRACE_NOVA_HPC

if [[ "$1" == "stack" && "$2" == "install" ]]; then
    echo_summary "Installing nova-hpc"
    nova_hpc_install
elif [[ "$1" == "stack" && "$2" == "post-config" ]]; then
    echo_summary "Configuring nova-hpc"
    nova_hpc_configure
    if [[ $NOVA_HPC_PARTITIONS == True ]]; then
        nova_hpc_configure_partitions
    fi
elif [[ "$1" == "stack" && "$2" == "extra" ]]; then
    if [[ ",$DEVSTACK_PLUGINS," == *,whitebox-tempest-plugin,* ]]; then
        nova_hpc_tell_whitebox
    fi
    if [[ $NOVA_HPC_PARTITIONS == True ]] && is_service_enabled hpc-fabric-agent; then
        echo_summary "Starting the agent of the fabric"
        if [[ -n "$NOVA_HPC_SIMULATED_FABRIC" ]]; then
            nova_hpc_start_fabric
        fi
        nova_hpc_start_fabric_agent
    fi
    if [[ -n "$NOVA_HPC_DESCRIBED_HOST" ]]; then
        echo_summary "Starting the described host $NOVA_HPC_DESCRIBED_HOST"
        nova_hpc_start_described_host
    fi
elif [[ "$1" == "stack" && "$2" == "test-config" ]]; then
    echo_summary "Making flavors of nova-hpc"
    nova_hpc_test_config
elif [[ "$1" == "unstack" ]]; then
    if is_service_enabled hpc-fabric-agent; then
        stop_process hpc-fabric-agent
    fi
    if [[ -n "$NOVA_HPC_SIMULATED_FABRIC" ]]; then
        stop_process hpc-fabric
    fi
    if [[ -n "$NOVA_HPC_DESCRIBED_HOST" ]]; then
        nova_hpc_stop_described_host
    fi
elif [[ "$1" == "clean" ]]; then
    nova_hpc_clean
fi
