-- topics
SELECT f.name AS forum, t.subject, u.username AS poster, t.type, t.status,
    t.approved FROM forum_conversation_topic t JOIN forum_forum f ON f.id = t.forum_id
    JOIN auth_user u ON u.id = t.poster_id ORDER BY t.id

-- posts
SELECT t.subject AS topic, p.subject, u.username AS poster, p.content,
    p.enable_signature AS signed, coalesce(p.update_reason, '') AS reason
    FROM forum_conversation_post p JOIN forum_conversation_topic t ON t.id = p.topic_id
    JOIN auth_user u ON u.id = p.poster_id ORDER BY p.created, p.id

-- subscribers
SELECT t.subject AS topic, u.username AS user
    FROM forum_conversation_topic_subscribers s
    JOIN forum_conversation_topic t ON t.id = s.topic_id
    JOIN auth_user u ON u.id = s.user_id ORDER BY s.id

-- polls
SELECT t.subject AS topic, p.question, p.max_options, p.duration, p.user_changes,
    p.hide_results FROM forum_polls_topicpoll p
    JOIN forum_conversation_topic t ON t.id = p.topic_id ORDER BY p.id

-- options
SELECT t.subject AS topic, o.text FROM forum_polls_topicpolloption o
    JOIN forum_polls_topicpoll p ON p.id = o.poll_id
    JOIN forum_conversation_topic t ON t.id = p.topic_id ORDER BY o.id

-- votes
SELECT t.subject AS topic, o.text, u.username AS voter
    FROM forum_polls_topicpollvote v
    JOIN forum_polls_topicpolloption o ON o.id = v.poll_option_id
    JOIN forum_polls_topicpoll p ON p.id = o.poll_id
    JOIN forum_conversation_topic t ON t.id = p.topic_id
    JOIN auth_user u ON u.id = v.voter_id ORDER BY v.id

-- profiles
SELECT u.username AS user, coalesce(m.signature, '') AS signature
    FROM forum_member_forumprofile m JOIN auth_user u ON u.id = m.user_id ORDER BY u.id

-- users
SELECT username AS user, password, email, is_active, is_staff FROM auth_user
    ORDER BY id
