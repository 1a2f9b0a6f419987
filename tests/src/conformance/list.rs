//! Makes tests of cases.

/// Makes one `#[test]` of each case, in a module for each group. `conformance!(name, rig)` is all of them but those that
/// send over connected services; `conformance!(name, rig, { objects: [case, …], … })` is these alone.
///
/// `rig` is a function that makes a rig, runs the case that it is given in it, and takes it down again; see
/// [`Rig`](crate::conformance::Rig).
#[macro_export]
macro_rules! conformance {
    ($name:ident, $rig:path) => {
        $crate::conformance!($name, $rig, {
            hca_and_port: [
                every_limit_of_a_feature_that_there_is_is_at_least_one,
                what_is_declared_is_what_the_capabilities_say,
                port_0_and_the_one_after_the_last_do_not_exist,
                a_port_with_a_link_and_no_subnet_manager_is_in_init_without_a_lid,
                a_port_that_is_brought_up_says_so_and_is_then_active_with_its_lid,
                gid_0_is_the_subnet_prefix_and_a_guid_of_the_port,
                pkey_0_is_the_default_partition_and_the_table_has_an_end,
                a_pkey_table_that_is_rewritten_is_told_and_then_found_in_the_cache,
                another_lid_lmc_and_prefix_are_told_and_then_seen,
                a_set_that_changes_nothing_is_no_lid_change,
                a_node_description_that_is_set_is_what_the_fabric_reads,
                a_capability_bit_of_a_port_is_set_and_cleared,
                a_cable_that_is_pulled_is_told_once_and_so_is_its_return,
                a_cable_that_is_pulled_in_init_is_no_port_error,
                each_client_reregister_is_told,
                another_subnet_manager_is_told,
            ],
            objects: [
                a_pd_with_a_qp_in_it_is_busy_until_the_qp_is_gone,
                a_pd_with_an_srq_in_it_is_busy_until_the_srq_is_gone,
                a_pd_with_a_region_in_it_is_busy_until_the_region_is_gone,
                a_pd_with_a_window_in_it_is_busy_until_the_window_is_gone,
                a_pd_with_an_address_handle_in_it_is_busy_until_that_is_gone,
                a_pd_with_its_own_whole_memory_region_goes,
                a_cq_is_busy_while_it_is_either_cq_of_a_qp,
                a_cq_with_unpolled_completions_goes_once_its_qp_is_gone,
                an_srq_is_busy_while_a_qp_receives_through_it,
                a_qp_attached_to_a_group_is_busy_until_detached,
                an_object_is_busy_while_a_reference_is_out,
                a_qp_with_work_outstanding_goes_from_every_state_and_completes_nothing_after,
                completions_of_a_destroyed_qp_leave_the_shared_cq_and_the_others_stay_in_order,
                a_number_that_comes_back_is_never_that_of_a_living_qp,
                after_the_last_qp_there_is_none_until_one_is_destroyed,
                a_cq_has_at_least_the_size_asked_for_and_never_more_than_the_limit,
                a_completion_vector_that_does_not_exist_is_refused,
                a_qp_has_at_least_the_sizes_asked_for_and_never_more_than_the_limits,
                an_srq_has_at_least_the_sizes_asked_for_and_never_more_than_the_limits,
                a_full_set_torn_down_in_the_right_order_leaves_room_for_a_thousand_more,
                a_handle_of_another_hca_is_refused,
                a_handle_of_a_dead_object_stays_dead_when_its_place_has_a_new_tenant,
                a_destroyed_cq_never_fires,
            ],
            qp_masks: [
                a_new_qp_is_in_reset,
                a_service_that_there_is_not_is_unsupported,
                every_transition_takes_exactly_what_it_requires,
                every_transition_takes_all_that_is_optional_too,
                a_transition_that_stays_needs_no_target_state,
                an_empty_mask_is_nothing_in_reset_and_err_and_refused_in_rtr,
                what_a_transition_requires_may_not_be_left_out,
                what_a_transition_does_not_list_may_not_be_given,
                nothing_may_be_given_on_the_way_to_reset_or_err,
                the_queues_of_a_qp_cannot_be_resized,
                a_transition_that_does_not_exist_is_refused,
                every_state_leads_to_reset,
                every_state_but_reset_leads_to_err,
                only_four_states_may_be_assumed,
                a_special_qp_has_its_port_from_creation,
            ],
            qp_states: [
                a_second_special_qp_of_a_port_is_busy,
                a_qp_with_an_srq_has_no_receive_queue,
                a_queue_of_size_0_is_always_full,
                a_port_or_pkey_index_that_is_not_there_is_refused,
                a_path_mtu_above_that_of_the_port_is_refused,
                timers_and_counts_above_their_limits_are_refused,
                a_responder_depth_is_never_rounded_down,
                a_connection_leads_to_one_port_of_the_subnet_and_leaves_by_its_own,
                a_new_qkey_holds_once_modify_has_returned,
                reset_discards_all_work_and_leaves_both_queues_empty,
                reset_keeps_number_and_sizes,
                receives_posted_in_init_are_used_from_rtr_on,
                a_message_for_a_qp_in_err_or_reset_is_dropped,
                an_idle_qp_is_drained_at_once_and_says_so_if_asked,
                sends_posted_in_sqd_wait_for_rts_and_then_go_in_order,
                a_qp_in_sqd_receives,
                a_bad_send_among_good_ones_is_told_and_what_follows_is_flushed,
                a_qp_in_sqe_receives_and_flushes_sends,
                a_qp_recovers_from_sqe_and_the_next_send_goes_out,
                err_flushes_everything_in_order_and_exactly_once,
                what_is_posted_in_err_is_flushed_behind_the_rest,
                two_who_modify_one_qp_get_the_results_of_some_order,
                a_qp_in_sqd_takes_another_pkey_and_qkey,
            ],
            posting: [
                a_state_that_takes_no_work_refuses_the_first_request,
                one_request_too_many_is_named_and_the_others_complete,
                entries_of_unsignalled_sends_are_free_once_a_later_completion_is_polled,
                with_the_policy_all_every_send_completes,
                a_list_stops_at_the_first_request_with_too_many_entries,
                an_opcode_of_another_service_is_refused_and_the_qp_lives,
                inline_data_is_copied_while_posting_and_its_key_is_not_looked_at,
                entries_of_any_length_over_several_regions_arrive_as_one_stream,
                a_send_of_nothing_arrives_with_a_length_of_40,
                a_datagram_of_the_mtu_arrives_and_one_byte_more_never_leaves,
                an_address_handle_of_another_pd_sends_nothing,
                an_address_handle_that_is_gone_is_refused,
                a_gsi_send_with_a_pkey_index_outside_the_table_is_refused,
                every_kind_of_bad_send_buffer_completes_with_loc_prot,
                every_kind_of_bad_receive_buffer_completes_with_loc_prot,
                a_datagram_longer_than_the_receive_ends_as_declared,
                a_datagram_tells_who_sent_it,
                immediate_data_arrives_in_the_order_of_the_wire,
                datagrams_of_one_path_fill_receives_in_posting_order,
                lists_of_two_posters_do_not_mix,
                a_qkey_with_bit_31_is_that_of_the_qp,
                a_qp_sends_to_itself,
            ],
            cq: [
                a_poll_gives_what_there_is_up_to_what_there_is_room_for,
                four_queues_on_one_cq_lose_nothing_and_each_keeps_its_order,
                two_pollers_share_the_completions_and_neither_sees_one_twice,
                an_armed_cq_fires_once_and_is_then_silent_until_armed_again,
                a_cq_armed_for_solicited_messages_waits_for_one,
                a_cq_armed_for_solicited_messages_fires_for_an_error,
                to_arm_for_less_is_no_downgrade,
                to_arm_for_more_is_an_upgrade,
                who_arms_and_then_polls_until_empty_never_misses_a_completion,
                a_cq_grows_with_completions_in_it_and_loses_none,
                a_cq_does_not_shrink_below_what_is_in_it,
                a_cq_that_is_resized_while_armed_fires_for_what_comes,
                a_cq_that_overruns_says_so_and_keeps_what_it_has,
                an_error_completion_says_which_request_of_which_qp,
                completions_of_a_cq_that_is_not_armed_wake_nobody,
            ],
            memory: [
                rights_and_ranges_that_may_not_be_are_refused,
                a_region_that_begins_and_ends_inside_pages_has_exactly_its_bytes,
                pages_of_a_region_may_lie_in_any_order,
                pages_of_each_announced_size_translate,
                the_whole_memory_key_takes_bus_addresses,
                a_key_that_is_gone_never_works_again,
                after_the_last_region_there_is_none_until_one_is_gone,
                a_queued_send_whose_region_goes_first_ends_with_loc_prot,
                a_region_registered_anew_has_the_new_properties_and_not_the_old,
                a_receive_writes_only_where_it_may,
                windows_that_there_are_not_are_unsupported,
                a_fast_region_is_mapped_anew_with_another_key_or_is_unsupported,
                a_region_serves_the_qps_of_its_pd_alone,
            ],
        });
    };
    ($name:ident, $rig:path, { $($group:ident: [$($case:ident),* $(,)?]),* $(,)? }) => {
        mod $name {
            $(mod $group {
                #[allow(unused_imports)]
                use super::super::*;
                $(#[test]
                fn $case() {
                    $rig(|rig| $crate::conformance::$group::$case(rig));
                })*
            })*
        }
    };
}
